"""Raw files of click logs for tests, made on the spot.

The ids follow a power law over the published table sizes, nothing repeats but ids, and a tenth of the fields is empty.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl

from workloads.prepare.formats import Kind, RawFormat

BLOCK_ROWS = 200_000
MISSING = 0.1
SKEW = 3.0  # ids are rows * u ** SKEW with u even on [0, 1): the hottest tenth takes about half of the accesses


def block_of(raw: RawFormat, rows: int, generator: np.random.Generator) -> pl.DataFrame:
    """Rows as text columns, in file order."""
    columns: dict[str, pl.Series] = {}
    for column in raw.columns:
        if column.kind is Kind.LABEL:
            values = pl.Series(generator.integers(0, 2, rows).astype(np.uint8))
        elif column.kind is Kind.IGNORED:
            values = pl.Series(np.full(rows, 14102100))
        elif column.kind.dense:
            values = pl.Series(generator.geometric(0.02, rows) - 2)
        else:
            size = column.rows or 1
            ids = (size * generator.random(rows) ** SKEW).astype(np.uint64)
            # an odd factor modulo 2^32: a name of 8 hex digits for each id, in no order
            values = pl.Series(ids if column.kind is Kind.CATEGORICAL_INTEGER else ids * np.uint64(2654435761) % 2**32)
        empty = column.kind.dense or column.kind is Kind.CATEGORICAL_HEX
        text = _hex(values) if column.kind is Kind.CATEGORICAL_HEX else values.cast(pl.String)
        missing = pl.Series(generator.random(rows) < MISSING) if empty and raw.separator == "\t" else None
        columns[column.name] = text if missing is None else text.set(missing, "")
    return pl.DataFrame(columns)


def _hex(values: pl.Series) -> pl.Series:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    shifts = np.arange(28, -4, -4, dtype=np.uint64)
    text = digits[(values.to_numpy()[:, None] >> shifts) & np.uint64(15)]
    return pl.Series(np.ascontiguousarray(text).view("S8").ravel().astype(str))


def write_raw(raw: RawFormat, path: Path, rows: int, *, seed: int, packed: bool) -> None:
    """Write a raw file of a dataset."""
    generator = np.random.default_rng(seed)
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as stream:
        if raw.header:
            stream.write((raw.separator.join(column.name for column in raw.columns) + "\n").encode())
        for start in range(0, rows, BLOCK_ROWS):
            frame = block_of(raw, min(BLOCK_ROWS, rows - start), generator)
            text = frame.write_csv(include_header=False, separator=raw.separator, quote_style="never")
            stream.write(text.encode())
