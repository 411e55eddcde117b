"""Traces, which simulators replay: the ids of batches, any of them at any time."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LRU
from workloads.batch import Split, Workload

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class Trace(ABC):
    """Ids of batches 0, 1, 2, ..., each the same whenever it is asked for; every table serves one feature.

    The rows of all tables are numbered through, table after table.

    Attributes:
        name: For people.
        tables: Names and rows, in the order of the rows.
        length: Batches there are.
        batch_lookups: Ids per batch, at most.
    """

    name: str
    tables: tuple[tuple[str, int], ...]
    length: int
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


class SomeTables(Trace):
    """The ids of some tables of a trace.

    Args:
        trace: All tables.
        names: Those to keep, in the order in which their rows are numbered.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        places = {name: place for place, (name, _) in enumerate(trace.tables)}
        self._kept = [places[name] for name in names]
        self.name = trace.name
        self.tables = tuple(trace.tables[place] for place in self._kept)
        self.length = trace.length
        self.batch_lookups = trace.batch_lookups
        self._trace = trace

    def ids(self, index: int) -> Ids:
        return self.of(self._trace.ids(index))

    def of(self, ids: Ids) -> Ids:
        """These tables' part of the ids of all."""
        parts = np.split(ids.values, ids.ends[:-1])
        kept = [parts[place] for place in self._kept]
        return Ids(np.concatenate(kept), np.cumsum([part.size for part in kept]), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        every = self._trace.frequencies()
        return [every[place] for place in self._kept]


class DistinctRows:
    """Finds the distinct rows of batches, by our cache's planner. Memory: 4 B per row of the tables, 24 B per id."""

    def __init__(self, rows: int) -> None:
        self._planner = Planner(rows=rows, slots=1, policy=LRU())

    def of(self, ids: Ids) -> tuple[Int32s, Int32s]:
        """Distinct rows of a batch, int32 `[u]`, in order of first occurrence, and how often each occurs in it."""
        found = self._planner.distinct(ids, np.diff(ids.starts, append=self._planner.rows))
        return found.rows, found.counts


class Seen:
    """A batch of a trace as simulators see it.

    Attributes:
        number: Its index in the trace.
        ids: As they came.
    """

    def __init__(self, number: int, ids: Ids, distinct: DistinctRows) -> None:
        self.number = number
        self.ids = ids
        self._distinct = distinct

    @cached_property
    def unique(self) -> tuple[Int32s, Int32s]:
        """Distinct rows, int32 `[u]`, in order of first occurrence, and how often each occurs."""
        return self._distinct.of(self.ids)


def replayed(trace: Trace, start: int, stop: int) -> Iterator[Seen]:
    """Batches `start` to `stop` of a trace; the next one is made by another thread meanwhile."""
    distinct = DistinctRows(trace.rows)
    for number, ids in made_ahead(trace, range(start, stop), threads=1):
        yield Seen(number, ids, distinct)


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
