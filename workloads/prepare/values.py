"""Columns of text to columns of numbers, alike for every kind of file, and the rows that are refused.

Refused are malformed rows, counted against an allowance, and rows that go back in time.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from workloads import DataError
from workloads.prepare.formats import LARGEST_FLOAT32, TIME, Kind, RawColumn


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
        value, fits = number.fill_null(0).cast(pl.Float32), number.is_between(-LARGEST_FLOAT32, LARGEST_FLOAT32)
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
        for column, field, right in zip(columns, fields, fine, strict=True):
            text = column.kind is Kind.CATEGORICAL_STRING
            if not right or (text and field.decode(errors="ignore").encode() != field):
                shown = repr(field[:60])[1:] + ("..." if len(field) > 60 else "")
                note = "" if field.isascii() else " (not plain text: is the file packed or in another encoding?)"
                found[row] = f"column {column.name}: found {shown}{note}, expected {column.kind.expected}"
                break
    return found


class RowChecks:
    """Counts the bad rows of a file that are left out, and refuses rows that are earlier than the row before them.

    Attributes:
        problems: What was wrong with each row that is left out, without the file's name, in order.

    Args:
        path: The file.
        allowed: Rows that may be left out.
        time: The column that says the order; None for no order.
    """

    def __init__(self, path: Path, *, allowed: int, time: RawColumn | None = None) -> None:
        self._path = path
        self._allowed = allowed
        self._time = time
        self._last: int | None = None
        self.problems: list[str] = []

    def good(self, rows: pl.DataFrame, refused: Mapping[int, str], *, first: int, word: str = "") -> pl.DataFrame:
        """The next rows without those that are refused, by position.

        In messages, the number of a row stands behind `word`; that of the first one is `first`.

        Raises:
            DataError: no more rows may be refused, or one goes back in time.
        """
        for position in sorted(refused):
            problem = f"{word}{first + position}: {refused[position]}"
            if len(self.problems) == self._allowed:
                raise too_many_bad_rows(self._path, problem, allowed=self._allowed)
            self.problems.append(problem)
        kept = np.delete(np.arange(rows.height), [*refused])
        found = rows[kept] if refused else rows
        if self._time is not None and found.height:
            times = found[self._time.name].to_numpy()
            back = np.flatnonzero(np.diff(times, prepend=times[0] if self._last is None else self._last) < 0)
            self._last = int(times[-1])
            if back.size:
                place = f"{self._path}:{word}{first + int(kept[back[0]])}: column {self._time.name}"
                raise DataError(
                    f"{place}: earlier than the row before it. Sort the file by time, then name the sorted one"
                )
        return found


def too_many_bad_rows(path: Path, problem: str, *, allowed: int) -> DataError:
    """The error for the first bad row that is not allowed."""
    note = f" (bad row {allowed + 1}; --skip-bad-rows allows {allowed})" if allowed else ""
    return DataError(f"{path}:{problem}{note}. Mend the row, or leave such rows out with --skip-bad-rows N")
