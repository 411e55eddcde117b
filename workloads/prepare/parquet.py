"""Parquet files to the same typed columns as text files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import polars as pl

from workloads import DataError
from workloads.manifest import FileRecord
from workloads.prepare.formats import LARGEST_FLOAT32, LARGEST_INTEGER, Kind, RawColumn, RawFormat
from workloads.prepare.values import RowChecks, finished, hashed_strings

# One row of one column while it is checked and converted.
BYTES_PER_VALUE = 16

_T = TypeVar("_T")
_TYPES: dict[Kind, tuple[Callable[[pl.DataType], bool], str]] = {
    Kind.LABEL: (lambda t: t == pl.Boolean or t.is_numeric(), "boolean or a number"),
    Kind.DENSE_INTEGER: (lambda t: t.is_integer(), "an integer type"),
    Kind.DENSE_FLOAT: (lambda t: t.is_numeric(), "a number"),
    Kind.CATEGORICAL_INTEGER: (lambda t: t.is_integer(), "an integer type"),
    Kind.CATEGORICAL_HEX: (lambda t: t == pl.String, "text"),
    Kind.CATEGORICAL_STRING: (lambda t: isinstance(t, pl.String | pl.Categorical | pl.Enum), "text or categories"),
    Kind.TIME: (lambda t: t.is_integer() or t == pl.Date or isinstance(t, pl.Datetime), "an integer, date or datetime"),
}


@dataclass
class ParquetRows:
    """Parses one Parquet file; columns are found by name, others are not read. `bytes_read` is 0 until all is read."""

    raw: RawFormat
    path: Path
    checks: RowChecks
    bytes_read: int = field(default=0, init=False)

    def frames(self, block_bytes: int) -> Iterator[pl.DataFrame]:
        """The good rows, in order, in frames of about `block_bytes`; columns as in `text.TextRows`.

        Raises:
            DataError: the file cannot be read, lacks a column or has one of a wrong type, is not in time order, or has
                more bad rows than allowed.
        """
        step = max(1, block_bytes // (BYTES_PER_VALUE * len(self.raw.used)))
        rows = self._read("the footer", self._checked_rows)
        if rows == 0:
            raise DataError(f"{self.path} is empty: give a file with rows")
        scan = pl.scan_parquet(self.path, glob=False).select(column.name for column in self.raw.used)
        for start in range(0, rows, step):
            where = f"rows {start + 1} to {min(start + step, rows)}"
            block = self._read(where, scan.slice(start, step).collect)
            yield self._typed(block, first=start)
        self.bytes_read = self.path.stat().st_size

    @property
    def sha256(self) -> str:
        """Sum of the whole file."""
        return FileRecord.of(self.path).sha256

    def _checked_rows(self) -> int:
        schema = pl.read_parquet_schema(self.path)
        missing = [column.name for column in self.raw.used if column.name not in schema]
        if missing:
            raise DataError(
                f"{self.path}: no column {', '.join(missing)} among {', '.join(schema)[:300]}: "
                "put the schema file right"
            )
        for column in self.raw.used:
            fits, expected = _TYPES[column.kind]
            found = schema[column.name]
            if not fits(found):
                raise DataError(
                    f"{self.path}: column {column.name} has type {found}, expected {expected}: "
                    "put the schema file right, or cast the column"
                )
        return int(pl.scan_parquet(self.path, glob=False).select(pl.len()).collect().item())

    def _read(self, what: str, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(f"{self.path}: {what} cannot be read ({reason}): write or download it again") from error

    def _typed(self, block: pl.DataFrame, *, first: int) -> pl.DataFrame:
        used = self.raw.used
        good = block.select(_good(column).fill_null(value=False).alias(column.name) for column in used)
        bad_rows = good.select(~pl.all_horizontal(pl.all())).to_series().arg_true()
        for position in bad_rows:
            column = next(column for column in used if not good[column.name][position])
            found = block[column.name][position]
            self.checks.add(
                f" row {first + position + 1}: column {column.name}: found {found!r}, expected {_expected(column)}"
            )
        rows = pl.int_range(first, first + block.height, eager=True)
        if len(bad_rows):
            kept = good.select(pl.all_horizontal(pl.all())).to_series()
            block, rows = block.filter(kept), rows.filter(kept)
        values = block.select(_value(column, block.schema[column.name]) for column in used)
        self.checks.check_order(values, lambda back: f" row {rows[back] + 1}")
        strings = [column.name for column in used if column.kind is Kind.CATEGORICAL_STRING]
        hashes = [hashed_strings(values[name].replace("", None)) for name in strings]
        return finished(values, used).with_columns(hashes)


def _good(column: RawColumn) -> pl.Expr:
    """Whether a value may stand in a column; null where it is missing and must not be."""
    value = pl.col(column.name)
    if column.kind is Kind.LABEL:
        return value.cast(pl.Float64).is_in([0.0, 1.0])
    if column.kind in {Kind.DENSE_INTEGER, Kind.CATEGORICAL_INTEGER}:
        return value.is_between(-LARGEST_INTEGER, LARGEST_INTEGER) | value.is_null()
    if column.kind is Kind.DENSE_FLOAT:
        number = value.cast(pl.Float64)
        return (number.is_finite() & (number.abs() <= LARGEST_FLOAT32)) | value.is_null()
    if column.kind is Kind.CATEGORICAL_HEX:
        return value.str.contains(r"\A[0-9a-fA-F]{0,16}\z") | value.is_null()
    if column.kind is Kind.TIME:
        return value.cast(pl.Int64, strict=False).is_not_null()
    return value.is_null() | value.is_not_null()


def _value(column: RawColumn, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(column.name)
    if column.kind is Kind.LABEL:
        return value.cast(pl.UInt8)
    if column.kind is Kind.CATEGORICAL_HEX:
        return value.str.to_integer(base=16, dtype=pl.UInt64, strict=False)  # nothing is a missing id, as in text
    if column.kind is Kind.DENSE_FLOAT:
        return value.cast(pl.Float64)
    if column.kind is Kind.CATEGORICAL_STRING:
        return value.cast(pl.String)
    if dtype.is_temporal():
        return value.cast(pl.Datetime("us")).to_physical()
    return value.cast(pl.Int64)


def _expected(column: RawColumn) -> str:
    words = {Kind.TIME: "a time", Kind.DENSE_FLOAT: "a finite 32-bit float, or null"}
    return words.get(column.kind, column.kind.expected.replace("nothing", "null"))
