"""Parquet files to the same typed columns as text files, by the same rules: values are read as the text they are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import polars as pl

from workloads import DataError
from workloads.manifest import FileRecord
from workloads.prepare.formats import Kind, RawColumn, RawFormat
from workloads.prepare.values import RowChecks, refusals, typed

# The text of one row of one column, about.
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
        texts = block.select(_text(column, block.schema[column.name]) for column in used)
        frame, good = typed(texts, used)
        rows = ([(text or "").encode() for text in row] for row in texts.iter_rows())
        refused = {} if all(column.all() for column in good) else refusals(used, rows, good)
        return self.checks.good(frame, refused, lambda position: f" row {first + position + 1}")


def _text(column: RawColumn, dtype: pl.DataType) -> pl.Expr:
    """A value as text, null where it is missing; nothing is a missing id, as in text."""
    value = pl.col(column.name)
    if column.kind is Kind.LABEL:  # true, and 1.0, are 1
        return value.cast(pl.Float64).cast(pl.String).str.strip_suffix(".0")
    if dtype.is_temporal():
        value = value.cast(pl.Datetime("us")).to_physical()
    text = value.cast(pl.String)
    return text.replace("", None) if column.kind.categorical else text
