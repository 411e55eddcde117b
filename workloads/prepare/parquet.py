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
            DataError: the file cannot be read, lacks a column or has one that is no text of its kind, is not in time
                order, or has more bad rows than allowed.
        """
        used = self.raw.used
        step = max(1, block_bytes // (BYTES_PER_VALUE * len(used)))
        scan = pl.scan_parquet(self.path, glob=False)
        schema = self._read("the footer", scan.collect_schema)
        missing = [column.name for column in used if column.name not in schema]
        if missing:
            among = ", ".join(schema)[:300]
            raise DataError(f"{self.path}: no column {', '.join(missing)} among {among}: put the schema file right")
        rows = self._read("the footer", scan.select(pl.len()).collect).item()
        if rows == 0:
            raise DataError(f"{self.path} is empty: give a file with rows")
        selected = scan.select(_text(column, schema[column.name]) for column in used)
        for start in range(0, rows, step):
            where = f"rows {start + 1} to {min(start + step, rows)}"
            texts = self._read(where, selected.slice(start, step).collect)
            frame, good = typed(texts, used)
            fields = ([(text or "").encode() for text in row] for row in texts.iter_rows())
            refused = {} if all(column.all() for column in good) else refusals(used, fields, good)
            yield self.checks.good(frame, refused, first=start + 1, word=" row ")
        self.bytes_read = self.path.stat().st_size

    @property
    def sha256(self) -> str:
        """Sum of the whole file."""
        return FileRecord.of(self.path).sha256

    def _read(self, what: str, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(f"{self.path}: {what} cannot be read ({reason}): write or download it again") from error


def _text(column: RawColumn, dtype: pl.DataType) -> pl.Expr:
    """A value as text, null where it is missing; nothing is a missing id, as in text."""
    value = pl.col(column.name)
    if column.kind is Kind.LABEL:  # true, and 1.0, are 1
        return value.cast(pl.Float64).cast(pl.String).str.strip_suffix(".0")
    if dtype.is_temporal():
        value = value.cast(pl.Datetime("us")).to_physical()
    text = value.cast(pl.String)
    return text.replace("", None) if column.kind.categorical else text
