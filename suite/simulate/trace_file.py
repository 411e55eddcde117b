"""Id streams of one's own, from a file.

Samples are in time order. What a file may hold:

- `.npy`: integers `[samples, tables]`, one id per sample and table.
- `.npz`: `ids` as above, and optionally `rows` and `names`, `[tables]`; or, for bags, `ids` `[n]` with `rows` and with
  `offsets` `[samples * tables + 1]`, where the bags of a sample follow one another, table by table.

Without `rows` a table ends at its largest id, and opening a file reads all of it once, in blocks. A `.npy` is mapped
into memory, a `.npz` is read into it. Messages count rows from 0, a row being a sample.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.simulate.trace import Int64s, Trace
from systems.freq_cache.cache.plan import Ids
from workloads import DataError
from workloads.schema import prefix_of

BLOCK_IDS = 1 << 22
"""Ids to read at a time where all are read, at one id per table."""

_MOST_ROWS = 2**31 - 1


class FileTrace(Trace):
    """A stream from a file; see the module for what it may hold.

    Args:
        path: `.npy` or `.npz`.
        batch_size: Samples per batch; those behind the last full batch are left out.
        prefix: Share of the samples, from the first one on, that `frequencies` counts.

    Raises:
        DataError: the file cannot be read or is no trace; the message names the place and the remedy.
    """

    def __init__(self, path: Path, batch_size: int, prefix: float = 1.0) -> None:
        self.name = path.name
        self._path, self._batch_size, self._prefix = path, batch_size, prefix
        arrays = _arrays(path)
        self._ids, self._offsets = arrays["ids"], arrays.get("offsets")
        rows = [int(size) for size in arrays["rows"].reshape(-1)] if "rows" in arrays else []
        if min(rows, default=1) < 1:
            raise DataError(f"{path}: rows has {min(rows)}: every table has at least 1")
        tables = self._count_tables(len(rows))
        if rows and len(rows) != tables:
            raise DataError(f"{path}: rows of {len(rows)} tables, ids of {tables}: give one per table")
        names = [*map(str, arrays["names"].flat)] if "names" in arrays else [f"table_{at}" for at in range(tables)]
        if not len(names) == len(set(names)) == tables:
            raise DataError(f"{path}: {len(names)} names, {len(set(names))} of them different, for {tables} tables")
        self._samples = len(self._ids) if self._offsets is None else (self._offsets.size - 1) // tables
        if not self._samples:
            raise DataError(f"{path} holds no samples: give a trace of at least one batch")
        if self._samples < batch_size:
            raise DataError(
                f"{path} holds {self._samples:,} samples, a batch has {batch_size:,}: "
                f"give --batch-size of at most {self._samples}"
            )
        self._sizes = rows or self._up_to_the_largest_ids(tables)
        if sum(self._sizes) > _MOST_ROWS:
            raise DataError(
                f"{path}: the tables have {sum(self._sizes):,} rows together, the simulator numbers fewer than 2^31: "
                "map the ids to 0, 1, 2, ... first"
            )
        self.tables = tuple(zip(names, self._sizes, strict=True))
        self.length = self._samples // batch_size
        self.batch_lookups = batch_size * tables
        if self._offsets is not None:
            self.batch_lookups = int(np.diff(self._offsets[:: batch_size * tables].astype(np.int64)).max())

    def ids(self, index: int) -> Ids:
        if not 0 <= index < self.length:
            raise IndexError(f"{self.name}: there is no batch {index}, only {self.length}")
        parts = self._by_table(index * self._batch_size, (index + 1) * self._batch_size, self._sizes)
        return Ids(np.concatenate(parts), np.cumsum([part.size for part in parts]), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        counts = [np.zeros(rows, np.int64) for rows in self._sizes]
        for parts in self._blocks(prefix_of(self._samples, self._prefix), self._sizes):
            for ids, into in zip(parts, counts, strict=True):
                np.add.at(into, ids, 1)
        return counts

    def _up_to_the_largest_ids(self, tables: int) -> list[int]:
        largest = np.zeros(tables, np.int64)
        for parts in self._blocks(self._samples, [_MOST_ROWS] * tables):
            largest = np.maximum(largest, [ids.max(initial=0) for ids in parts])
        return [int(most) + 1 for most in largest]

    def _blocks(self, samples: int, sizes: Sequence[int]) -> Iterator[list[Int64s]]:
        """The ids of each table, block by block of the first samples."""
        block = max(1, BLOCK_IDS // len(sizes))
        for start in range(0, samples, block):
            yield self._by_table(start, min(start + block, samples), sizes)

    def _by_table(self, start: int, stop: int, sizes: Sequence[int]) -> list[Int64s]:
        """Ids of samples by table, int64 `[n]` each.

        Raises:
            DataError: an id is outside its table, whose rows are `sizes`.
        """
        samples = np.arange(start, stop)
        parts = []
        for table, rows in enumerate(sizes):
            if self._offsets is None:
                values, sample_of = self._ids[start:stop, table], samples
            else:
                begins = self._offsets[start * len(sizes) + table : stop * len(sizes) : len(sizes)].astype(np.int64)
                ends = self._offsets[start * len(sizes) + table + 1 : stop * len(sizes) + 1 : len(sizes)]
                lengths = ends.astype(np.int64) - begins
                sample_of = samples.repeat(lengths)
                within = np.arange(sample_of.size) - (lengths.cumsum() - lengths).repeat(lengths)
                values = self._ids[begins.repeat(lengths) + within]
            bad = np.flatnonzero((values < 0) | (values >= rows))
            if bad.size:
                said = _wrong(values[bad[0]], rows)
                raise DataError(f"{self._path}, table {table}, row {sample_of[bad[0]]}: {said}")
            parts.append(values.astype(np.int64))
        return parts

    def _count_tables(self, described: int) -> int:
        """By the shape of the ids, or for bags by the tables that have rows. Raises `DataError`: the shapes are off."""
        ids, offsets = self._ids, self._offsets
        if offsets is None:
            if ids.ndim != 2 or not ids.shape[1]:
                raise DataError(f"{self._path}: ids of shape {list(ids.shape)}: give [samples, tables]")
            return int(ids.shape[1])
        if not described:
            raise DataError(f"{self._path}: ids with offsets: give rows too, they say how many tables there are")
        if ids.ndim != 1 or offsets.ndim != 1 or not offsets.size or (offsets.size - 1) % described:
            raise DataError(
                f"{self._path}: ids of shape {list(ids.shape)} with offsets of shape {list(offsets.shape)} and "
                f"{described} tables: give ids [n] and offsets [samples * {described} + 1]"
            )
        if offsets[0] != 0 or offsets[-1] != ids.size:
            raise DataError(
                f"{self._path}: offsets run from {offsets[0]} to {offsets[-1]}: "
                f"they must run from 0 to the number of ids, {ids.size}"
            )
        falls = np.flatnonzero(offsets[1:] < offsets[:-1])
        if falls.size:
            raise DataError(
                f"{self._path}: offsets fall within sample {falls[0] // described}: a bag must not end before it begins"
            )
        return described


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name. Raises `DataError`: it cannot be read, or is no trace."""
    kind = path.suffix.lower()
    if kind not in (".npy", ".npz"):
        raise DataError(f"--trace: {path} ends in '{kind}': give a .npy or .npz file")
    arrays: dict[str, NDArray[Any]]
    try:
        if kind == ".npy":
            arrays = {"ids": np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            with np.load(path, allow_pickle=False) as archive:
                arrays = dict(archive)
    except Exception as error:  # damage shows as whatever numpy, zipfile or a decompressor raises
        raise DataError(f"--trace: cannot read {path}: {error}: give a file that numpy can load") from error
    if "ids" not in arrays or not set(arrays) <= {"ids", "offsets", "rows", "names"}:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}: give ids, with offsets, rows and names as needed, and "
            "nothing else"
        )
    for what, array in arrays.items():
        if what != "names" and array.dtype.kind not in "iu":
            raise DataError(f"{path}: {what} are {array.dtype}: give integers")
    return arrays


def _wrong(value: int, rows: int) -> str:
    """Words for an id that a table of so many rows does not have."""
    if value < 0:
        return f"id {value} is negative: ids count from 0, give missing values an id of theirs"
    if rows == _MOST_ROWS:
        return f"id {value} does not fit 2^31 rows: map the ids to 0, 1, 2, ... first"
    return f"id {value} is outside the table's {rows:,} rows: give it more rows"
