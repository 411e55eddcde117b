"""What simulators replay: the ids of batches, any of them at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, wraps
from threading import RLock
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.planner import Ids
from workloads.batch import Split, Workload

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
_Made = TypeVar("_Made")

MAKING = RLock()
"""Held while something is made of a trace that all replays share: the others wait instead of making it too."""

_FAR = 32
"""How many ids ahead a loop asks for memory."""


class Trace(ABC):
    """Ids of batches 0, 1, 2, ..., each the same whenever it is asked for.

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
        sizes = np.array([rows for _, rows in self.tables], np.int64)
        starts: Int64s = sizes.cumsum() - sizes
        return starts


def once_per_trace(make: Callable[[Trace], _Made]) -> Callable[[Trace], _Made]:
    """Keep what a function makes of a trace as long as the trace lives: it is the same for every size of a cache."""
    made: WeakKeyDictionary[Trace, _Made] = WeakKeyDictionary()

    @wraps(make)
    def once(trace: Trace) -> _Made:
        with MAKING:
            if trace not in made:
                made[trace] = make(trace)
            return made[trace]

    return once


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


class Seen:
    """One batch of a trace as simulators see it.

    Attributes:
        number: Its index in the trace.
        ids: As they came.
    """

    def __init__(self, number: int, ids: Ids, distinct: Distinct) -> None:
        self.number = number
        self.ids = ids
        self._distinct = distinct

    @cached_property
    def unique(self) -> tuple[Int32s, Int32s]:
        """Its distinct rows, int32 `[u]`, in order of first occurrence, and how often each occurs, int32 `[u]`."""
        return self._distinct.of(self.ids)


class Distinct:
    """Finds the distinct rows of batches. Memory: 4 B per row of the tables."""

    def __init__(self, rows: int) -> None:
        self._place = np.zeros(rows, np.int32)

    def of(self, ids: Ids) -> tuple[Int32s, Int32s]:
        """Distinct rows of a batch, int32 `[u]`, in order of first occurrence, and their occurrences, int32 `[u]`."""
        rows, occurrences = np.empty(ids.values.size, np.int32), np.empty(ids.values.size, np.int32)
        found = _distinct(ids.values, ids.ends, ids.starts, self._place, rows, occurrences)
        return rows[:found].copy(), occurrences[:found].copy()


def replayed(trace: Trace, start: int, stop: int) -> Iterator[Seen]:
    """Batches `start` to `stop` of a trace; the next one is made by another thread meanwhile."""
    distinct = Distinct(trace.rows)
    with ThreadPoolExecutor(1, thread_name_prefix="trace") as maker:
        coming = maker.submit(trace.ids, start) if start < stop else None
        for index in range(start, stop):
            assert coming is not None
            ids = coming.result()
            coming = maker.submit(trace.ids, index + 1) if index + 1 < stop else None
            yield Seen(index, ids, distinct)


@compiled
def _distinct(values, ends, starts, place, rows, occurrences):
    """`place` is all zeros before and after: of a row met, 1 + where it stands in `rows`."""
    found = 0
    begin = 0
    for feature in range(ends.size):
        start = starts[feature]
        for i in range(begin, ends[feature]):
            if i + _FAR < ends[feature]:
                prefetch(place, start + values[i + _FAR])
            row = np.uint64(start + values[i])
            at = place[row]
            if at == 0:
                rows[found] = row
                occurrences[found] = 1
                found += 1
                place[row] = found
            else:
                occurrences[at - 1] += 1
        begin = ends[feature]
    for i in range(found):
        if i + _FAR < found:
            prefetch(place, rows[i + _FAR])
        place[np.uint64(rows[i])] = 0
    return found
