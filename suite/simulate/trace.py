"""Traces, which simulators replay: the ids of batches, any of them at any time."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LRU
from workloads import DataError
from workloads.batch import Split, Workload
from workloads.schema import prefix_of

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class Trace(ABC):
    """Ids of batches 0, 1, 2, ..., each the same whenever it is asked for; every table serves one feature.

    The rows of all tables are numbered through, table after table.

    Attributes:
        name: For people.
        tables: Names and rows, in the order of the rows.
        length: Batches there are.
        batch_size: Samples per batch.
        batch_lookups: Ids per batch, at most.
    """

    name: str
    tables: tuple[tuple[str, int], ...]
    length: int
    batch_size: int
    batch_lookups: int

    @abstractmethod
    def ids(self, index: int) -> Ids:
        """The ids of a batch. May be called from any thread.

        Raises:
            IndexError: there is no batch of that index.
        """

    @abstractmethod
    def frequencies(self) -> list[Int64s]:
        """Accesses per row of each table, int64 `[rows]`, that a system may know beforehand."""

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(rows for _, rows in self.tables)

    @cached_property
    def table_starts(self) -> Int64s:
        """The row at which each table starts, int64 `[tables]`."""
        ends: Int64s = np.cumsum([0, *(rows for _, rows in self.tables)])
        return ends[:-1]


class WorkloadTrace(Trace):
    """The training split of a workload.

    Args:
        workload: Its tables serve one feature each.
        prefix: Share of the training split that `frequencies` come from.
    """

    def __init__(self, workload: Workload, *, prefix: float = 1.0) -> None:
        self.name = workload.name
        self.tables = workload.tables
        self.length = workload.batches(Split.TRAIN)
        self.batch_size = workload.batch_size
        self.batch_lookups = workload.batch_lookups
        self._workload = workload
        self._prefix = prefix

    def ids(self, index: int) -> Ids:
        features = self._workload.batch(index, Split.TRAIN).features
        ends = features.offsets()[features.stride() :: features.stride()].numpy()
        return Ids(features.values().numpy(), ends, self.table_starts)

    def frequencies(self) -> list[Int64s]:
        found = self._workload.frequencies(self._prefix)
        return [found[name].numpy() for name, _ in self.tables]


class FileTrace(Trace):
    """Ids of one's own: integers `[samples, tables]` in the order of time, one id per sample and table.

    A `.npy` holds them and is mapped into memory; a `.npz` has them as `ids`, and optionally `rows` and `names` of the
    tables, `[tables]`. Without `rows` a table ends at its largest id, and opening a file reads all of it once.

    Args:
        path: `.npy` or `.npz`.
        batch_size: Samples per batch; those behind the last full batch are left out.
        prefix: Share of the samples, from the first one on, that `frequencies` counts.

    Raises:
        DataError: the file cannot be read or is no trace; the message names the place and the remedy.
    """

    def __init__(self, path: Path, batch_size: int, prefix: float = 1.0) -> None:
        self.name = path.name
        arrays = _arrays(path)
        self._path, self._ids, self.batch_size = path, arrays["ids"], batch_size
        if self._ids.ndim != 2 or not self._ids.size:
            raise DataError(f"{path}: ids of shape {list(self._ids.shape)}: give [samples, tables], at least one each")
        samples, tables = self._ids.shape
        if samples < batch_size:
            raise DataError(
                f"{path} holds {samples:,} samples, a batch has {batch_size:,}: give --batch-size of at most {samples}"
            )
        rows = arrays["rows"] if "rows" in arrays else self._ids.max(axis=0).astype(object) + 1
        names = arrays["names"] if "names" in arrays else np.array([f"table_{at}" for at in range(tables)])
        self.tables = tuple((str(name), int(size)) for name, size in zip(names.flat, rows.flat, strict=False))
        if not rows.size == names.size == len(dict(self.tables)) == tables:
            raise DataError(
                f"{path}: ids of {tables} tables, {rows.size} rows and {names.size} names: give one of each"
            )
        if (least := min(size for _, size in self.tables)) < 1:
            raise DataError(f"{path}: a table of {least} rows: give it at least one, and count ids from 0")
        numbered(self.rows, f"{path}: ")
        self.length = samples // batch_size
        self.batch_lookups = batch_size * tables
        self._counted = prefix_of(samples, prefix)

    def ids(self, index: int) -> Ids:
        if not 0 <= index < self.length:
            raise IndexError(f"{self.name}: there is no batch {index}, only {self.length}")
        columns = self._columns(index * self.batch_size, (index + 1) * self.batch_size)
        return Ids(columns.reshape(-1), self.batch_size * np.arange(1, len(columns) + 1), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        counts = [np.zeros(rows, np.int64) for _, rows in self.tables]
        for start in range(0, self._counted, self.batch_size):
            columns = self._columns(start, min(start + self.batch_size, self._counted))
            for into, ids in zip(counts, columns, strict=True):
                np.add.at(into, ids, 1)
        return counts

    def _columns(self, start: int, stop: int) -> Int64s:
        """Ids of samples by table, int64 `[tables, samples]`. Raises `DataError`: one is outside its table."""
        block = self._ids[start:stop]
        bad = np.argwhere((block < 0) | (block >= [rows for _, rows in self.tables]))
        if bad.size:
            sample, table = bad[0]
            raise DataError(
                f"{self._path}, table {table}, row {start + sample}: id {block[sample, table]} is outside the table's "
                f"{self.tables[table][1]:,} rows: ids count from 0, and missing values have an id of theirs"
            )
        return np.array(block.T, np.int64, order="C")


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
    if "ids" not in arrays or not set(arrays) <= {"ids", "rows", "names"}:
        raise DataError(f"{path} holds {', '.join(arrays) or 'nothing'}: give ids, and rows and names as needed, alone")
    for what, array in arrays.items():
        if what != "names" and array.dtype.kind not in "iu":
            raise DataError(f"{path}: {what} are {array.dtype}: give integers")
    return arrays


def numbered(rows: int, where: str = "") -> None:
    """Refuse more rows of all tables than the planner can number.

    Raises:
        DataError: the message begins with `where`.
    """
    if rows >= 2**31 - 2:
        raise DataError(
            f"{where}the tables have {rows:,} rows together, the simulator numbers fewer than 2^31: map the ids to 0, "
            "1, 2, ... first, or prepare the data with smaller tables"
        )


class DistinctRows:
    """Finds the distinct rows of batches, by our cache's planner. Memory: 4 B per row of the tables, 24 B per id."""

    def __init__(self, rows: int) -> None:
        numbered(rows)
        self._planner = Planner(rows=rows, slots=1, policy=LRU())

    def of(self, ids: Ids) -> tuple[Int32s, Int32s]:
        """Distinct rows of a batch, int32 `[u]`, in order of first occurrence, and how often each occurs in it."""
        found = self._planner.distinct(ids, np.diff(ids.starts, append=self._planner.rows))
        return found.rows, found.counts


class Seen(NamedTuple):
    """A batch of a trace as simulators see it.

    Attributes:
        number: Its index in the trace.
        ids: As they came.
        unique: Distinct rows, int32 `[u]`, in order of first occurrence, and how often each occurs.
    """

    number: int
    ids: Ids
    unique: tuple[Int32s, Int32s]


def replayed(trace: Trace, start: int, stop: int) -> Iterator[Seen]:
    """Batches `start` to `stop` of a trace; the next one is made by another thread meanwhile."""
    distinct = DistinctRows(trace.rows)
    for number, ids in made_ahead(trace, range(start, stop), threads=1):
        yield Seen(number, ids, distinct.of(ids))


def made_ahead(trace: Trace, numbers: Iterable[int], *, threads: int) -> Iterator[tuple[int, Ids]]:
    """Batches of these numbers with their ids; as many threads make those that follow meanwhile."""
    coming: deque[tuple[int, Future[Ids]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="trace") as makers:
        for number in numbers:
            coming.append((number, makers.submit(trace.ids, number)))
            if len(coming) > threads:
                first, ids = coming.popleft()
                yield first, ids.result()
        for number, ids in coming:
            yield number, ids.result()
