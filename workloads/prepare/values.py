"""Columns of text to columns of numbers, alike for every kind of file, and the rows that are refused.

Refused are malformed rows, counted against an allowance, and rows that go back in time.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from workloads import DataError
from workloads.prepare.formats import LARGEST_FLOAT32, TIME, Kind, RawColumn

LOGGED_BAD_ROWS = 10
_LOG = logging.getLogger(__name__)


def typed(texts: pl.DataFrame, columns: Sequence[RawColumn], *, plus: bool = True) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Columns of text, empty ones null, to those described in `TextRows`, and whether each text is of its kind, bool.

    `plus` says whether a text may have one.
    """
    values = texts.select(_value(column) for column in columns)
    good = pl.DataFrame([_good(column, texts[column.name], values[column.name], plus=plus) for column in columns])
    casts = {
        Kind.LABEL: lambda e: e.cast(pl.UInt8),
        Kind.DENSE_INTEGER: lambda e: e.fill_null(0),
        Kind.DENSE_FLOAT: lambda e: e.fill_null(0).cast(pl.Float32),
        Kind.CATEGORICAL_INTEGER: lambda e: e.reinterpret(signed=False),
    }
    finished = values.select(casts.get(column.kind, lambda e: e)(pl.col(column.name)) for column in columns)
    strings = [column.name for column in columns if column.kind is Kind.CATEGORICAL_STRING]
    return finished.with_columns(hashed_strings(texts[name]) for name in strings), good


def _good(column: RawColumn, texts: pl.Series, values: pl.Series, *, plus: bool) -> pl.Series:
    """Whether each text is of the kind of its column; conversions alone take more."""
    if column.kind is Kind.LABEL:
        return values.is_not_null()
    if column.kind is Kind.TIME:
        return values.is_not_null() & texts.str.contains(rf"\A(?:{TIME})\z")
    if column.kind is Kind.CATEGORICAL_STRING:
        return texts.is_null() | texts.is_not_null()
    if column.kind is Kind.DENSE_FLOAT:
        fits = values.is_between(-LARGEST_FLOAT32, LARGEST_FLOAT32)
    elif column.kind is Kind.CATEGORICAL_HEX:
        fits = texts.str.len_bytes() <= 16
    else:
        fits = texts.str.len_bytes() <= 18
        if not fits.all():
            fits = texts.str.strip_chars_start("-").str.len_bytes() <= 18
    if plus:  # polars takes +5 for 5
        fits &= ~texts.str.starts_with("+")
    return texts.is_null() | (values.is_not_null() & fits)


def refusals(columns: Sequence[RawColumn], rows: Iterable[Sequence[bytes]], good: pl.DataFrame) -> dict[int, str]:
    """By row the first field that may not stand in its column, with what may; rows without one are left out."""
    found = {}
    for row, (fields, fine) in enumerate(zip(rows, good.iter_rows(), strict=True)):
        for column, field, right in zip(columns, fields, fine, strict=True):
            text = column.kind is Kind.CATEGORICAL_STRING
            if not right or (text and field.decode(errors="ignore").encode() != field):
                shown = repr(field[:60])[1:] + ("..." if len(field) > 60 else "")
                note = "" if field.isascii() else " (not plain text: is the file packed or in another encoding?)"
                found[row] = f"column {column.name}: found {shown}{note}, expected {column.kind.expected}"
                break
    return found


def hashed_strings(strings: pl.Series) -> pl.Series:
    """64-bit hashes of text, null for null, the same in every process and version: SipHash with a fixed key.

    Two different ones of n strings share a hash with a chance of about n^2 / 2^65: 3e-4 for 100 million.
    """
    distinct = strings.drop_nulls().unique()
    hashes = pd.util.hash_array(distinct.to_numpy().astype(object), categorize=False)
    return strings.replace_strict(distinct, pl.Series(hashes, dtype=pl.UInt64), default=None, return_dtype=pl.UInt64)


def _value(column: RawColumn) -> pl.Expr:
    """The value of a field of text; null where it is empty or wrong."""
    text = pl.col(column.name)
    if column.kind is Kind.LABEL:
        return pl.when(text == "1").then(1).when(text == "0").then(0).otherwise(None).alias(column.name)
    if column.kind is Kind.CATEGORICAL_HEX:
        return text.str.to_integer(base=16, dtype=pl.UInt64, strict=False)
    if column.kind is Kind.DENSE_FLOAT:
        return text.cast(pl.Float64, strict=False)
    if column.kind is Kind.TIME:
        date = text.str.replace("T", " ", literal=True).str.to_datetime(
            "%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us"
        )
        return pl.coalesce(text.cast(pl.Int64, strict=False), date.to_physical())
    if column.kind is Kind.CATEGORICAL_STRING:
        return text
    return text.cast(pl.Int64, strict=False)


class RowChecks:
    """Counts the bad rows of a file that are left out, and refuses rows that are earlier than the row before them.

    `problems` says what was wrong, without the file's name, in order. Without a column of `time` there is no order.
    """

    def __init__(self, path: Path, *, allowed: int, time: RawColumn | None = None) -> None:
        self._path = path
        self._allowed = allowed
        self._time = time
        self._last: int | None = None
        self.problems: list[str] = []

    def good(self, rows: pl.DataFrame, refused: Mapping[int, str], where: Callable[[int], str]) -> pl.DataFrame:
        """The next rows without those that are refused, by position. `where` says of a position how people find it.

        Raises:
            DataError: no more rows may be refused, or one goes back in time.
        """
        for position in sorted(refused):
            problem, count = f"{where(position)}: {refused[position]}", len(self.problems)
            if count == self._allowed:
                raise too_many_bad_rows(self._path, problem, allowed=self._allowed)
            self.problems.append(problem)
            if count < LOGGED_BAD_ROWS:
                _LOG.warning("left out %s:%s", self._path, problem)
        kept = np.delete(np.arange(rows.height), [*refused])
        found = rows[kept] if refused else rows
        if self._time is not None and found.height:
            times = found[self._time.name].to_numpy()
            back = np.flatnonzero(np.diff(times, prepend=times[0] if self._last is None else self._last) < 0)
            self._last = int(times[-1])
            if back.size:
                raise DataError(
                    f"{self._path}:{where(int(kept[back[0]]))}: column {self._time.name}: earlier than the row before "
                    "it. Sort the file by time, then name the sorted one"
                )
        return found


def too_many_bad_rows(path: Path, problem: str, *, allowed: int) -> DataError:
    """The error for the first bad row that is not allowed."""
    note = f" (bad row {allowed + 1}; --skip-bad-rows allows {allowed})" if allowed else ""
    return DataError(f"{path}:{problem}{note}. Mend the row, or leave such rows out with --skip-bad-rows N")
