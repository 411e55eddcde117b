"""Text to typed columns: whole blocks at once where every line is good, line by line where one may not be.

Rows are refused alike in every kind of file: malformed ones, counted against an allowance, and those back in time.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from workloads import DataError
from workloads.prepare.formats import EXPECTED, TIME, Kind, RawColumn, RawFormat
from workloads.prepare.lines import LONGEST_LINE_BYTES, RawFile, ahead

# So much text around a bad line is read line by line.
SLOW_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# polars drops a byte order mark, and unpacks what begins like gzip, zlib (three levels) or zstd.
_TAKEN_FOR_OTHERS = (_BYTE_ORDER_MARK, b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd")
csv.field_size_limit(LONGEST_LINE_BYTES)


def typed(texts: pl.DataFrame, columns: Sequence[RawColumn], *, plus: bool = True) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Columns of text, empty ones null, to those described in `TextRows`, and whether each text is of its kind, bool.

    `plus` says whether a text may have one.
    """
    both = {column.name: _parsed(column.kind, pl.col(column.name), plus=plus) for column in columns}
    values = [value.alias(name) for name, (value, _) in both.items()]
    good = [fits.alias(f"{name}: good") for name, (_, fits) in both.items()]
    found = texts.lazy().select(*values, *good).collect()  # lazily, so that what both need is made once
    return found[:, : len(both)], found[:, len(both) :]


def _parsed(kind: Kind, text: pl.Expr, *, plus: bool) -> tuple[pl.Expr, pl.Expr]:
    """The value of a field of text, and whether the field is of its kind: conversions alone take more."""
    if kind is Kind.LABEL:
        label = pl.when(text == "1").then(pl.lit(1, pl.UInt8)).when(text == "0").then(pl.lit(0, pl.UInt8))
        return label, label.is_not_null()
    if kind is Kind.TIME:
        date = text.str.replace("T", " ", literal=True).str.to_datetime(
            "%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us"
        )
        value = pl.coalesce(text.cast(pl.Int64, strict=False), date.to_physical())
        return value, value.is_not_null() & text.str.contains(rf"\A(?:{TIME})\z")
    if kind is Kind.CATEGORICAL_STRING:
        return text.map_batches(hashed_strings, return_dtype=pl.UInt64), text.is_null() | text.is_not_null()
    if kind is Kind.DENSE_FLOAT:
        number = text.cast(pl.Float64, strict=False)
        value = number.fill_null(0).cast(pl.Float32)
        fits = value.is_finite()
    elif kind is Kind.CATEGORICAL_HEX:
        number = value = text.str.to_integer(base=16, dtype=pl.UInt64, strict=False)
        fits = text.str.len_bytes() <= 16
    else:
        number = text.cast(pl.Int64, strict=False)
        value = number.fill_null(0) if kind is Kind.DENSE_INTEGER else number.reinterpret(signed=False)
        fits = text.str.len_bytes() <= 18 + (number < 0)
    if plus:  # polars takes +5 for 5
        fits &= ~text.str.starts_with("+")
    return value, text.is_null() | (number.is_not_null() & fits)


def hashed_strings(strings: pl.Series) -> pl.Series:
    """64-bit hashes of text, null for null, the same in every process and version: SipHash with a fixed key.

    Two different ones of n strings share a hash with a chance of about n^2 / 2^65: 3e-4 for 100 million.
    """
    distinct = strings.drop_nulls().unique()
    hashes = pd.util.hash_array(distinct.to_numpy().astype(object), categorize=False)
    return strings.replace_strict(distinct, pl.Series(hashes, dtype=pl.UInt64), default=None, return_dtype=pl.UInt64)


def refusals(columns: Sequence[RawColumn], rows: Iterable[Sequence[bytes]], good: pl.DataFrame) -> dict[int, str]:
    """By row the first field that may not stand in its column, with what may; rows without one are left out."""
    found = {}
    for row, (fields, fine) in enumerate(zip(rows, good.iter_rows(), strict=True)):
        for column, cell, right in zip(columns, fields, fine, strict=True):
            text = column.kind is Kind.CATEGORICAL_STRING
            if not right or (text and cell.decode(errors="ignore").encode() != cell):
                shown = repr(cell[:60])[1:] + ("..." if len(cell) > 60 else "")
                note = "" if cell.isascii() else " (not plain text: is the file packed or in another encoding?)"
                found[row] = f"column {column.name}: found {shown}{note}, expected {EXPECTED[column.kind]}"
                break
    return found


@dataclass
class RowChecks:
    """Counts the bad rows of a file that are left out, and refuses rows that are earlier than the row before them.

    Attributes:
        path: The file.
        allowed: Rows that may be left out.
        time: The column that says the order; None for no order.
        problems: What was wrong with each row that is left out, without the file's name, in order.
    """

    path: Path
    allowed: int
    time: RawColumn | None = None
    problems: list[str] = field(default_factory=list)
    _last: int | None = None

    def good(self, rows: pl.DataFrame, refused: Mapping[int, str], *, first: int, word: str = "") -> pl.DataFrame:
        """The next rows without those that are refused, by position.

        In messages, the number of a row stands behind `word`; that of the first one is `first`.

        Raises:
            DataError: no more rows may be refused, or one goes back in time.
        """
        for position in sorted(refused):
            problem = f"{word}{first + position}: {refused[position]}"
            if len(self.problems) == self.allowed:
                raise too_many_bad_rows(self.path, problem, allowed=self.allowed)
            self.problems.append(problem)
        kept = np.delete(np.arange(rows.height), [*refused])
        found = rows[kept] if refused else rows
        if self.time is not None and found.height:
            times = found[self.time.name].to_numpy()
            before = np.concatenate([times[:1] if self._last is None else [np.int64(self._last)], times[:-1]])
            back = np.flatnonzero(times < before)
            self._last = int(times[-1])
            if back.size:
                place = f"{self.path}:{word}{first + int(kept[back[0]])}: column {self.time.name}"
                raise DataError(
                    f"{place}: earlier than the row before it. Sort the file by time, then name the sorted one"
                )
        return found


def too_many_bad_rows(path: Path, problem: str, *, allowed: int) -> DataError:
    """The error for the first bad row that is not allowed."""
    note = f" (bad row {allowed + 1}; --skip-bad-rows allows {allowed})" if allowed else ""
    return DataError(f"{path}:{problem}{note}. Mend the row, or leave such rows out with --skip-bad-rows N")


class _BadLine(ValueError):
    """A line is malformed; the message says why."""


class TextRows:
    """Parses one text file.

    The typed frames that it gives have the used columns of the format by name: labels uint8, dense columns int64 or
    float32 with 0 for an empty field, ids uint64 with null for a missing one (integers in two's complement, strings
    as their 64-bit hash), time int64.

    Bad rows are counted in `checks` and left out.
    """

    def __init__(self, raw: RawFormat, file: RawFile, checks: RowChecks) -> None:
        self._raw, self._file, self._checks = raw, file, checks
        self._columns = raw.columns  # in the order of this file
        self._separator, self._quote = raw.separator.encode(), raw.quote.encode()

    def frames(self, block_bytes: int) -> Iterator[pl.DataFrame]:
        """The good rows, in order, about `block_bytes` of text at a time.

        Raises:
            DataError: the file cannot be read, lacks its header, is not in time order, or has more bad rows than
                allowed.
        """
        for first, block in ahead(self._file.blocks(block_bytes)):
            header, rows = b"", block.removeprefix(_BYTE_ORDER_MARK) if first == 1 else block
            if first == 1 and self._raw.header:
                header, _, rows = rows.partition(b"\n")
                self._take_header(header)
            if rows:
                yield self._typed(first + bool(header), rows)

    @property
    def _used(self) -> list[RawColumn]:
        return [column for column in self._columns if column.kind is not Kind.IGNORED]

    def _typed(self, first: int, text: bytes) -> pl.DataFrame:
        """The good rows of whole lines, of which `first` is the number of the first."""
        frame = self._fast(text)
        if frame is not None:
            return self._checks.good(frame, {}, first=first)
        end = text.find(b"\n", len(text) // 2) + 1
        if len(text) <= SLOW_BYTES or end == len(text):
            return self._slow(first, text)
        parts = (first, text[:end]), (first + text.count(b"\n", 0, end), text[end:])
        return pl.concat([self._typed(*part) for part in parts])

    def _fast(self, text: bytes) -> pl.DataFrame | None:
        """The typed rows of lines that are all good; None where one may not be."""
        if text.startswith(_TAKEN_FOR_OTHERS) or b"\r" in text or self._quoted(text):
            return None
        lines = text.count(b"\n")  # polars fills up short ones
        if text.count(self._separator) != lines * (len(self._columns) - 1):
            return None
        try:
            frame = pl.read_csv(
                text,
                has_header=False,
                separator=self._raw.separator,
                quote_char=None,
                schema={column.name: pl.String for column in self._columns},
            )
        except pl.exceptions.PolarsError:
            return None
        if frame.height != lines:
            return None
        found, good = typed(frame, self._used, plus=b"+" in text)
        return found if all(column.all() for column in good) else None

    def _slow(self, first: int, text: bytes) -> pl.DataFrame:
        rows: list[list[bytes]] = []
        malformed: dict[int, str] = {}
        positions = [i for i, column in enumerate(self._columns) if column.kind is not Kind.IGNORED]
        for number, line in enumerate(text.removesuffix(b"\n").split(b"\n")):
            try:
                fields = self._fields(line)
            except _BadLine as problem:
                malformed[number] = str(problem)
                fields = [b""] * len(self._columns)
            rows.append([fields[position] for position in positions])
        schema = {column.name: pl.String for column in self._used}
        decoded = [[field.decode(errors="replace") for field in row] for row in rows]
        texts = pl.DataFrame(decoded, schema=schema, orient="row").with_columns(pl.all().replace("", None))
        frame, good = typed(texts, self._used)
        return self._checks.good(frame, refusals(self._used, rows, good) | malformed, first=first)

    def _fields(self, line: bytes) -> list[bytes]:
        """The fields of a line, as many as there are columns."""
        fields = self._split(line)
        expected = len(self._columns)
        if len(fields) != expected:
            raise _BadLine(f"{len(fields)} columns found, expected {expected} separated by {self._raw.separator!r}")
        return fields

    def _quoted(self, text: bytes) -> bool:
        return self._quote != b"" and self._quote in text

    def _split(self, line: bytes) -> list[bytes]:
        """The fields of a line, some of which may be in quotes."""
        if not self._quoted(line):
            return line.split(self._separator)
        text = [line.decode("latin-1")]  # which maps every byte to one character and back
        try:
            fields = next(csv.reader(text, delimiter=self._raw.separator, quotechar=self._raw.quote, strict=True))
        except csv.Error as error:
            problem = f"quotes that do not pair up in this line ({error}); a field may not run over a line end"
            raise _BadLine(problem) from error
        return [field.encode("latin-1") for field in fields]

    def _take_header(self, line: bytes) -> None:
        """Check the first line, which names the columns, and put them in the order of this file."""
        try:
            names = [field.decode(errors="replace") for field in self._split(line)]
        except _BadLine as problem:
            raise DataError(f"{self._file.path}:1: {problem}: put the header right") from problem
        missing = [column.name for column in self._raw.used if column.name not in names]
        if missing:
            raise DataError(
                f"{self._file.path}:1: no column {', '.join(missing)} among {', '.join(names)[:300]} "
                f"(separated by {self._raw.separator!r}): put the header, or the schema file, right"
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{self._file.path}:1: the header names {', '.join(twice)} twice: rename one")
        kinds = {column.name: column for column in self._raw.columns}
        self._columns = tuple(kinds.get(name, RawColumn(name, Kind.IGNORED)) for name in names)
