"""What simulators replay: the ids of batches, any of them at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, wraps
from itertools import zip_longest
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

RUN_IDS = 1 << 17
"""Ids of batches that are taken at once, where batches are small: what a batch costs beyond its ids is then little."""

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

    def run(self, start: int, stop: int) -> Ids:
        """The ids of batches `start` to `stop`, batch after batch: `ends` is int64 `[batches * features]`."""
        batches = [self.ids(index) for index in range(start, stop)]
        if len(batches) == 1:
            return batches[0]
        begins = np.cumsum([0, *(batch.values.size for batch in batches[:-1])])
        ends = [begin + batch.ends for begin, batch in zip(begins, batches, strict=True)]
        return Ids(np.concatenate([batch.values for batch in batches]), np.concatenate(ends), batches[0].starts)

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
    """Batches of a trace as simulators see them: one, or some that follow one another.

    Attributes:
        number: The index of the first in the trace.
        batches: How many there are.
        ids: As they came, batch after batch.
    """

    def __init__(self, number: int, batches: int, ids: Ids, distinct: Distinct) -> None:
        self.number = number
        self.batches = batches
        self.ids = ids
        self._distinct = distinct

    @property
    def unique(self) -> tuple[Int32s, Int32s]:
        """Distinct rows of each batch, int32 `[u]`, in order of first occurrence, and how often each occurs in it."""
        rows, occurrences, _ = self._found
        return rows, occurrences

    @property
    def ends(self) -> Int64s:
        """Where the rows of each batch end in `unique`, int64 `[batches]`."""
        return self._found[2]

    @cached_property
    def _found(self) -> tuple[Int32s, Int32s, Int64s]:
        return self._distinct.of_each(self.ids, self.batches)


class Distinct:
    """Finds the distinct rows of batches. Memory: 4 B per row of the tables."""

    def __init__(self, rows: int) -> None:
        self._place = np.zeros(rows, np.int32)

    def of(self, ids: Ids) -> tuple[Int32s, Int32s]:
        """Distinct rows of a batch, int32 `[u]`, in order of first occurrence, and their occurrences, int32 `[u]`."""
        rows, occurrences, _ = self.of_each(ids, 1)
        return rows, occurrences

    def of_each(self, ids: Ids, batches: int) -> tuple[Int32s, Int32s, Int64s]:
        """The same of so many batches, one behind the other, and where those of each end, int64 `[batches]`."""
        rows, occurrences = np.empty(ids.values.size, np.int32), np.empty(ids.values.size, np.int32)
        ends = np.empty(batches, np.int64)
        _distinct(ids.values, ids.ends, ids.starts, self._place, rows, occurrences, ends)
        found = int(ends[-1])
        return rows[:found].copy(), occurrences[:found].copy(), ends


def run_length(trace: Trace) -> int:
    """How many batches of a trace are taken at once."""
    return max(1, RUN_IDS // max(1, trace.batch_lookups))


def replayed(trace: Trace, start: int, stop: int, *, at_once: int = 1, cut: int = 0) -> Iterator[Seen]:
    """Batches `start` to `stop` of a trace; the next ones are made by another thread meanwhile.

    They come up to `at_once` together: from one multiple of it to the next, and never with `cut` behind another.
    """
    distinct = Distinct(trace.rows)
    runs = list(_runs(start, stop, at_once, cut))
    with ThreadPoolExecutor(1, thread_name_prefix="trace") as maker:
        coming = maker.submit(trace.run, *runs[0]) if runs else None
        for (first, last), following in zip_longest(runs, runs[1:]):
            assert coming is not None
            ids = coming.result()
            coming = maker.submit(trace.run, *following) if following else None
            yield Seen(first, last - first, ids, distinct)


def _runs(start: int, stop: int, at_once: int, cut: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        end = min(start - start % at_once + at_once, stop)
        if start < cut < end:
            end = cut
        yield start, end
        start = end


@compiled
def _distinct(values, ends, starts, place, rows, occurrences, row_ends):
    """`place` is all zeros before and after: of a row met in a batch, 1 + where it stands in `rows`."""
    found = 0
    begin = 0
    for batch in range(row_ends.size):
        first = found
        for feature in range(starts.size):
            start = starts[feature]
            end = ends[batch * starts.size + feature]
            for i in range(begin, end):
                if i + _FAR < end:
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
            begin = end
        for i in range(first, found):
            if i + _FAR < found:
                prefetch(place, rows[i + _FAR])
            place[np.uint64(rows[i])] = 0
        row_ends[batch] = found
