"""Raw files of click logs for tests, made on the spot.

The ids follow a power law over the published table sizes, nothing repeats but ids, and a tenth of the fields is empty.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl

from workloads.prepare.formats import Kind, RawFormat

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
        is_hex = column.kind is Kind.CATEGORICAL_HEX
        text = pl.Series([f"{value:08x}" for value in values]) if is_hex else values.cast(pl.String)
        if (column.kind.dense or is_hex) and raw.separator == "\t":
            text = text.set(pl.Series(generator.random(rows) < MISSING), "")
        columns[column.name] = text
    return pl.DataFrame(columns)


def write_raw(raw: RawFormat, path: Path, rows: int, *, seed: int, packed: bool) -> None:
    """Write a raw file of a dataset."""
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as stream:
        if raw.header:
            stream.write((raw.separator.join(column.name for column in raw.columns) + "\n").encode())
        frame = block_of(raw, rows, np.random.default_rng(seed))
        stream.write(frame.write_csv(include_header=False, separator=raw.separator, quote_style="never").encode())
