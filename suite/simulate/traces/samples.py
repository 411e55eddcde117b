"""The ids of any samples of a `.npy` or `.npz` file: one id per table, or bags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from suite.simulate.traces.trace import Int64s
from workloads.errors import DataError

Integers = NDArray[np.integer]

BLOCK_IDS = 1 << 22
"""Of one id per table, to read at a time where all are read."""


class Samples:
    """The samples of a file.

    Args:
        path: For messages.
        ids: One per table, integers `[samples, tables]`; with offsets those of bags, integers `[n]`.
        offsets: Of the bags of all samples, table after table within a sample, integers `[samples * tables + 1]`.
        rows: Of each table, if the file says; bags need rows or names, for nothing else says how many tables there are.
        names: Of the tables; numbers stand in for them.

    Attributes:
        count: How many there are.
        rows, names: Of the tables.

    Raises:
        DataError: the arrays do not go together.
    """

    def __init__(
        self,
        path: Path,
        ids: Integers,
        offsets: Integers | None = None,
        rows: Integers | None = None,
        names: NDArray[np.str_] | None = None,
    ) -> None:
        self.path = path
        self._ids = ids
        self._offsets = offsets
        for what, array in (("ids", ids), ("offsets", offsets), ("rows", rows)):
            if array is not None and array.dtype.kind not in "iu":
                raise DataError(f"{path}: {what} are {array.dtype}: give integers")
        self.rows = None if rows is None else [int(size) for size in rows.reshape(-1)]
        if self.rows is not None and min(self.rows, default=1) < 1:
            raise DataError(f"{path}: rows has {min(self.rows)}: every table has at least 1")
        tables = self._count_tables(0 if names is None else names.size)
        self.names = (
            tuple(f"table_{table}" for table in range(tables)) if names is None else tuple(map(str, names.flat))
        )
        if len(self.names) != tables or len(set(self.names)) != tables:
            different = len(set(self.names))
            raise DataError(f"{path}: {len(self.names)} names, {different} of them different, for {tables} tables")
        if self.rows is not None and len(self.rows) != tables:
            raise DataError(f"{path}: rows of {len(self.rows)} tables, ids of {tables}: give one per table")
        self.count = ids.shape[0] if offsets is None else (offsets.size - 1) // tables
        if offsets is not None:
            self._check_offsets(offsets)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Those of a file: a `.npy` is mapped into memory, a `.npz` is read into it.

        Raises:
            DataError: the file cannot be read or is no trace; the message names the remedy.
        """
        if not path.is_file():
            raise DataError(f"--trace: there is no file {path}")
        if path.suffix.lower() not in (".npy", ".npz"):
            raise DataError(f"--trace: {path} ends in '{path.suffix.lower()}': give a .npy or .npz file")
        arrays: dict[str, NDArray[np.generic]]
        try:
            if path.suffix.lower() == ".npy":
                arrays = {"ids": np.load(path, mmap_mode="r", allow_pickle=False)}
            else:
                with np.load(path, allow_pickle=False) as archive:
                    arrays = dict(archive)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise DataError(f"--trace: cannot read {path}: {error}") from error
        if "ids" not in arrays or not set(arrays) <= {"ids", "offsets", "rows", "names"}:
            raise DataError(
                f"{path} holds {', '.join(arrays) or 'nothing'}: give ids, with offsets, rows and names as needed, and "
                "nothing else"
            )
        return cls(path, **arrays)  # type: ignore[arg-type] # the kinds are checked there

    def read(self, start: int, stop: int, batch: int) -> tuple[Int64s, Int64s]:
        """Ids of samples, int64 `[n]`, and where each table's end, int64 `[batches * tables]`.

        They come batch after batch of so many samples, with those of a batch table after table.
        """
        tables = len(self.names)
        if self._offsets is None:
            batches = self._ids[start:stop].reshape(-1, batch, tables).swapaxes(1, 2)
            values = np.ascontiguousarray(batches, dtype=np.int64).reshape(-1)
            return values, np.arange(batch, values.size + 1, batch, dtype=np.int64)
        offsets = self._bounds(start, stop)
        lengths = np.diff(offsets)
        parts = np.arange((stop - start) // batch * tables, dtype=np.int32).reshape(-1, 1, tables)
        part_of_bag = np.broadcast_to(parts, (parts.shape[0], batch, tables)).reshape(-1)
        by_part = np.argsort(np.repeat(part_of_bag, lengths), kind="stable")
        values = self._ids[offsets[0] : offsets[-1]].astype(np.int64)[by_part]
        return values, lengths.reshape(-1, batch, tables).sum(axis=1).reshape(-1).cumsum()

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        """The sample from `start` to `stop` that the `at`-th id of a table there belongs to."""
        ends = np.diff(self._bounds(start, stop)).reshape(-1, len(self.names))[:, table].cumsum()
        return start + int(np.searchsorted(ends, at, side="right"))

    def most_ids(self, batch: int) -> int:
        """Ids of a batch of so many samples, at most."""
        if self._offsets is None:
            return batch * len(self.names)
        return int(np.diff(self._offsets[:: batch * len(self.names)].astype(np.int64)).max())

    def blocks(self, samples: int) -> Iterator[tuple[int, int]]:
        """First and last plus one of the first samples, block by block."""
        block = max(1, BLOCK_IDS // len(self.names))
        for start in range(0, samples, block):
            yield start, min(start + block, samples)

    def place(self, table: int) -> str:
        """How a person finds a table in the file."""
        return f"column {table} ('{self.names[table]}')"

    def _count_tables(self, names: int) -> int:
        shape = list(self._ids.shape)
        if self._offsets is None:
            if len(shape) != 2 or not shape[1]:
                raise DataError(f"{self.path}: ids of shape {shape}: give [samples, tables]")
            return int(shape[1])
        tables = len(self.rows or ()) or names
        if not tables:
            raise DataError(
                f"{self.path}: ids with offsets: give rows or names too, they say how many tables there are"
            )
        size = self._offsets.size
        if len(shape) != 1 or self._offsets.ndim != 1 or (size - 1) % tables or size < 1:
            raise DataError(
                f"{self.path}: ids of shape {shape} with offsets of shape {list(self._offsets.shape)} and {tables} "
                f"tables: give ids [n] and offsets [samples * {tables} + 1]"
            )
        return tables

    def _bounds(self, start: int, stop: int) -> Int64s:
        """Where the bags of samples begin, and the last one ends."""
        tables = len(self.names)
        if self._offsets is None:
            return np.arange(start * tables, stop * tables + 1)
        return self._offsets[start * tables : stop * tables + 1].astype(np.int64)

    def _check_offsets(self, offsets: Integers) -> None:
        if offsets[0] != 0 or offsets[-1] != self._ids.size:
            raise DataError(
                f"{self.path}: offsets run from {offsets[0]} to {offsets[-1]}: "
                f"they must run from 0 to the number of ids, {self._ids.size}"
            )
        for start, stop in self.blocks(self.count):
            falls = np.flatnonzero(np.diff(self._bounds(start, stop)) < 0)
            if falls.size:
                sample, table = divmod(int(falls[0]), len(self.names))
                raise DataError(
                    f"{self.path}: offsets fall within sample {start + sample}, {self.place(table)}: "
                    "a bag must not end before it begins"
                )
