"""Traces, which simulators replay: the ids of batches, any of them at any time."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, wraps
from itertools import pairwise
from threading import RLock
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from suite.records.command_line import BadOption
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.compiled import compiled, prefetch
from workloads.batch import Split, Workload

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
_MAKING = RLock()
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

RUN_IDS = 1 << 17
"""Ids of batches that are taken at once, where batches are small: what a batch costs beyond its ids is then little."""

FAR = 32
"""Ids by which a loop asks for memory ahead."""


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
        ends: Int64s = np.cumsum([0, *(rows for _, rows in self.tables)])
        return ends[:-1]


def once_per_trace(make: Callable[Concatenate[Trace, _Given], _Made]) -> Callable[Concatenate[Trace, _Given], _Made]:
    """Keep what was made of a trace last as long as the trace lives: it is the same for every size of a cache.

    All replays share it: the others wait instead of making it too.
    """
    made: WeakKeyDictionary[Trace, tuple[object, _Made]] = WeakKeyDictionary()

    @wraps(make)
    def once(trace: Trace, /, *given: _Given.args, **named: _Given.kwargs) -> _Made:
        asked = given, named
        with _MAKING:
            if trace not in made or made[trace][0] != asked:
                made.pop(trace, None)  # frees it before another is made
                made[trace] = asked, make(trace, *given, **named)
            return made[trace][1]

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


class SomeTables(Trace):
    """The ids of some tables of a trace.

    Args:
        trace: All tables.
        names: Those to keep, in the order in which their rows are numbered.

    Raises:
        BadOption: the trace has no such table.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        places = {name: place for place, (name, _) in enumerate(trace.tables)}
        if unknown := [name for name in names if name not in places]:
            raise BadOption(f"{trace.name} has no table {', '.join(unknown)}: it has {', '.join(places)}")
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
    """Finds the distinct rows of batches. Memory: 4 B per row of the tables."""

    def __init__(self, rows: int) -> None:
        self._place = np.zeros(rows, np.int32)

    def of(self, ids: Ids, batches: int = 1) -> tuple[Int32s, Int32s, Int64s]:
        """Distinct rows of batches, in order of first occurrence.

        Args:
            ids: Of all of them, batch after batch.
            batches: How many there are.

        Returns:
            The rows of each batch, int32 `[u]`, how often each occurs in it, int32 `[u]`, and where those of each batch
            end, int64 `[batches]`.
        """
        rows, occurrences = np.empty(ids.values.size, np.int32), np.empty(ids.values.size, np.int32)
        ends = np.empty(batches, np.int64)
        _distinct(ids.values, ids.ends, ids.starts, self._place, rows, occurrences, ends)
        return rows[: ends[-1]].copy(), occurrences[: ends[-1]].copy(), ends


class Seen:
    """Batches of a trace as simulators see them: one, or some that follow one another.

    Attributes:
        number: The index of the first in the trace.
        batches: How many there are.
        ids: As they came, batch after batch.
    """

    def __init__(self, number: int, batches: int, ids: Ids, distinct: DistinctRows) -> None:
        self.number = number
        self.batches = batches
        self.ids = ids
        self._distinct = distinct

    @property
    def unique(self) -> tuple[Int32s, Int32s]:
        """Distinct rows of each batch, int32 `[u]`, in order of first occurrence, and how often each occurs in it."""
        return self._found[:2]

    @property
    def ends(self) -> Int64s:
        """The end of the rows of each batch in `unique`, int64 `[batches]`."""
        return self._found[2]

    @cached_property
    def _found(self) -> tuple[Int32s, Int32s, Int64s]:
        return self._distinct.of(self.ids, self.batches)


def run_length(trace: Trace) -> int:
    """Batches of a trace that are taken at once."""
    return max(1, RUN_IDS // max(1, trace.batch_lookups))


def replayed(trace: Trace, start: int, stop: int, *, at_once: int = 1, cut: int = 0) -> Iterator[Seen]:
    """Batches `start` to `stop` of a trace; the next ones are made by another thread meanwhile.

    They come up to `at_once` together: from one multiple of it to the next, and never with `cut` behind another.
    """
    distinct = DistinctRows(trace.rows)
    begins = {start, cut, *range(start - start % at_once + at_once, stop, at_once)}
    runs = pairwise([*sorted(begin for begin in begins if start <= begin < stop), stop])
    for first, last, ids in made_ahead(trace, runs, threads=1):
        yield Seen(first, last - first, ids, distinct)


def made_ahead(trace: Trace, runs: Iterable[tuple[int, int]], *, threads: int) -> Iterator[tuple[int, int, Ids]]:
    """Runs of batches with their ids; as many threads make those that follow meanwhile."""
    coming: deque[tuple[int, int, Future[Ids]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="trace") as makers:
        for start, stop in runs:
            coming.append((start, stop, makers.submit(trace.run, start, stop)))
            if len(coming) > threads:
                first, last, ids = coming.popleft()
                yield first, last, ids.result()
        for first, last, ids in coming:
            yield first, last, ids.result()


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
                if i + FAR < end:
                    prefetch(place, start + values[i + FAR])
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
            if i + FAR < found:
                prefetch(place, rows[i + FAR])
            place[np.uint64(rows[i])] = 0
        row_ends[batch] = found
