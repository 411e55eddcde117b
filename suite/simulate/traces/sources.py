"""The ids of any samples of a file: arrays of one id per table, or of bags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suite.simulate.traces.trace import Int64s
from workloads.errors import DataError

Integers = NDArray[np.integer]

BLOCK_IDS = 1 << 22
"""Of one id per table, to read at a time where all are read."""


class Source(ABC):
    """The ids of any samples of a file.

    Attributes:
        path: The file.
        samples: How many there are.
        names: Of the tables.
    """

    path: Path
    samples: int
    names: tuple[str, ...]

    @abstractmethod
    def read(self, start: int, stop: int, batch: int) -> tuple[Int64s, Int64s]:
        """Ids of samples, int64 `[n]`, and where each table's end, int64 `[batches * tables]`.

        They come batch after batch of so many samples, with those of a batch table after table.
        """

    @abstractmethod
    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        """The sample that the `at`-th id of a table belongs to, of those that `read` gives."""

    @abstractmethod
    def most_ids(self, samples: int) -> int:
        """Ids of so many samples in a row, at most."""

    def blocks(self, samples: int) -> Iterator[tuple[int, int]]:
        """First and last plus one of the first samples, block by block."""
        block = max(1, BLOCK_IDS // len(self.names))
        for start in range(0, samples, block):
            yield start, min(start + block, samples)

    def place(self, table: int) -> str:
        """How a person finds a table in the file."""
        return f"column {table} ('{self.names[table]}')"


class OneHot(Source):
    """Integers `[samples, tables]`."""

    def __init__(self, path: Path, ids: Integers, names: Sequence[str] | None = None) -> None:
        if ids.ndim != 2 or not ids.shape[1]:
            raise DataError(f"{path}: ids of shape {list(ids.shape)}: give [samples, tables]")
        check_integers(path, "ids", ids)
        self.path = path
        self.samples = ids.shape[0]
        self.names = names_of(path, names, tables=ids.shape[1])
        self._ids = ids

    def read(self, start: int, stop: int, batch: int) -> tuple[Int64s, Int64s]:
        batches = self._ids[start:stop].reshape(-1, batch, len(self.names)).swapaxes(1, 2)
        values = np.ascontiguousarray(batches, dtype=np.int64).reshape(-1)
        return values, np.arange(batch, values.size + 1, batch, dtype=np.int64)

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        return start + at

    def most_ids(self, samples: int) -> int:
        return samples * len(self.names)


class Bags(Source):
    """Integers `[n]`, sample after sample, and `offsets` `[samples * tables + 1]`."""

    def __init__(self, path: Path, ids: Integers, offsets: Integers, names: tuple[str, ...]) -> None:
        check_integers(path, "ids", ids)
        check_integers(path, "offsets", offsets)
        tables = len(names)
        if ids.ndim != 1 or offsets.ndim != 1 or (offsets.size - 1) % tables or offsets.size < 1:
            raise DataError(
                f"{path}: ids of shape {list(ids.shape)} with offsets of shape {list(offsets.shape)} and {tables} "
                f"tables: give ids [n] and offsets [samples * {tables} + 1]"
            )
        self.path = path
        self.samples = (offsets.size - 1) // tables
        self.names = names
        self._ids = ids
        self._offsets = offsets
        self._check_offsets()

    def read(self, start: int, stop: int, batch: int) -> tuple[Int64s, Int64s]:
        tables = len(self.names)
        offsets = self._offsets_of(start, stop)
        lengths = np.diff(offsets)
        parts = np.arange((stop - start) // batch * tables, dtype=np.int32).reshape(-1, 1, tables)
        part_of_bag = np.broadcast_to(parts, (parts.shape[0], batch, tables)).reshape(-1)
        by_part = np.argsort(np.repeat(part_of_bag, lengths), kind="stable")
        values = self._ids[offsets[0] : offsets[-1]].astype(np.int64)[by_part]
        return values, lengths.reshape(-1, batch, tables).sum(axis=1).reshape(-1).cumsum()

    def sample_of(self, start: int, stop: int, table: int, at: int) -> int:
        ends = np.diff(self._offsets_of(start, stop)).reshape(-1, len(self.names))[:, table].cumsum()
        return start + int(np.searchsorted(ends, at, side="right"))

    def most_ids(self, samples: int) -> int:
        first = np.asarray(self._offsets[:: len(self.names)][::samples], np.int64)
        # batches begin at multiples of `samples`; what is left over at the end is none
        return int(np.diff(first).max())

    def _offsets_of(self, start: int, stop: int) -> Int64s:
        tables = len(self.names)
        return self._offsets[start * tables : stop * tables + 1].astype(np.int64)

    def _check_offsets(self) -> None:
        if self._offsets[0] != 0 or self._offsets[-1] != self._ids.size:
            raise DataError(
                f"{self.path}: offsets run from {self._offsets[0]} to {self._offsets[-1]}: "
                f"they must run from 0 to the number of ids, {self._ids.size}"
            )
        for start, stop in self.blocks(self.samples):
            falls = np.flatnonzero(np.diff(self._offsets_of(start, stop)) < 0)
            if falls.size:
                sample, table = divmod(int(falls[0]), len(self.names))
                raise DataError(
                    f"{self.path}: offsets fall within sample {start + sample}, {self.place(table)}: "
                    "a bag must not end before it begins"
                )


def names_of(path: Path, names: Sequence[str] | None, *, tables: int) -> tuple[str, ...]:
    """The names of the tables, or numbers where there are none. Raises `DataError`: they do not fit the tables."""
    if names is None:
        return tuple(f"table_{table}" for table in range(tables))
    if len(names) != tables or len(set(names)) != tables:
        raise DataError(f"{path}: {len(names)} names, {len(set(names))} of them different, for {tables} tables")
    return tuple(names)


def check_integers(path: Path, what: str, array: NDArray[np.generic]) -> None:
    """Raises `DataError` unless an array holds integers."""
    if array.dtype.kind not in "iu":
        raise DataError(f"{path}: {what} are {array.dtype}: give integers")
