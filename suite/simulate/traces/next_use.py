"""When every row is used next: a backward pass over a trace, made once for all cache sizes."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CannotReplay
from suite.simulate.traces.trace import MAKING, Int64s, Trace, run_length
from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.planner import Ids

Uses = NDArray[np.unsignedinteger]
"""Numbers of batches: uint16 where they fit, else uint32."""

_MAKERS = 2
"""Threads that make batches: here nothing else takes long."""

_IN_MEMORY_BYTES = 1 << 30

_FAR = 32
"""How many ids ahead a loop asks for memory."""


class NextUses:
    """Next uses of the rows of batches 0 to `stop` of a trace.

    Memory: 8 B per batch, and 2 B per row of the tables and per distinct row of each batch; 4 B from 65,536 batches on.
    Where the next uses of all batches take more than `in_memory_bytes`, those of the first lie in a temporary file.

    Args:
        trace: Read once, backwards.
        stop: Batches that there are; later ones count as never.
        in_memory_bytes: Of the batches' next uses.

    Attributes:
        never: What stands for no use: `stop`.
        first: The batch that uses each row first, `[rows]`.

    Raises:
        CannotReplay: the drive of temporary files is full.
    """

    def __init__(self, trace: Trace, stop: int, *, in_memory_bytes: int = _IN_MEMORY_BYTES) -> None:
        self.never = stop
        kind = np.uint16 if stop <= np.iinfo(np.uint16).max else np.uint32
        self.first: Uses = np.full(trace.rows, stop, kind)
        self._at_once = run_length(trace)
        self._ends: Int64s = np.empty(stop, np.int64)  # of each batch's, among those of the batches read with it
        self._kept: dict[int, Uses] = {}
        self._file: IO[bytes] | None = None
        self._places: dict[int, int] = {}
        room = in_memory_bytes
        found: Uses = np.empty(self._at_once * trace.batch_lookups, kind)
        for number, ids in _backwards(trace, stop, self._at_once):
            ends = self._ends[number : number + self._at_once]
            uses: Uses = found[: _go_back(ids.values, ids.ends, ids.starts, number, self.first, found, ends)]
            room -= uses.nbytes
            if room >= 0:
                self._kept[number] = uses.copy()
            else:
                self._spool(number, uses)

    def of(self, start: int, stop: int | None = None) -> Uses:
        """Next uses of the distinct rows of a batch, `[u]`, in order of first occurrence, or of batches up to `stop`.

        Of several batches only those can be had together that `replayed` gives with `run_length` at once.
        """
        number = start - start % self._at_once
        begin = int(self._ends[start - 1]) if start > number else 0
        end = int(self._ends[(start + 1 if stop is None else stop) - 1])
        if number in self._kept:
            return self._kept[number][begin:end]
        assert self._file is not None
        kind = self.first.dtype
        place = self._places[number] + begin * kind.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), (end - begin) * kind.itemsize, place), kind)

    def _spool(self, number: int, uses: Uses) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
            self._places[number] = self._file.seek(0, 2)
            self._file.write(uses.data)
            self._file.flush()
        except OSError as error:
            raise CannotReplay(
                f"next uses do not fit in {tempfile.gettempdir()} ({error.strerror}): "
                "replay fewer batches, or set TMPDIR to a directory with more room"
            ) from error


def next_uses(trace: Trace, stop: int) -> NextUses:
    """The same, from the last call where that was for as many batches of this trace."""
    with MAKING:
        known = _KNOWN.get(trace)
        if known is None or known.never != stop:
            _KNOWN.pop(trace, None)  # frees them before others are made
            known = _KNOWN[trace] = NextUses(trace, stop)
        return known


_KNOWN: WeakKeyDictionary[Trace, NextUses] = WeakKeyDictionary()


def _backwards(trace: Trace, stop: int, at_once: int) -> Iterator[tuple[int, Ids]]:
    """The batches before `stop`, so many at once and the last ones first, with the number of the first of each."""
    coming: deque[tuple[int, Future[Ids]]] = deque()
    with ThreadPoolExecutor(_MAKERS, thread_name_prefix="trace") as makers:
        for number in reversed(range(0, stop, at_once)):
            coming.append((number, makers.submit(trace.run, number, min(number + at_once, stop))))
            if len(coming) > _MAKERS:
                done, ids = coming.popleft()
                yield done, ids.result()
        for number, ids in coming:
            yield number, ids.result()


@compiled
def _go_back(values, ends, starts, first, latest, uses, uses_ends):
    """Write the next uses of the distinct rows of batches, from number `first` on. Returns how many there are.

    `latest` is then the first of these batches that uses a row, and `uses_ends` where the next uses of each batch end.
    """
    for batch in range(uses_ends.size - 1, -1, -1):
        begin = ends[batch * starts.size - 1] if batch else 0
        found = begin  # there is room for one of every id
        for feature in range(starts.size):
            start = starts[feature]
            end = ends[batch * starts.size + feature]
            for i in range(begin, end):
                if i + _FAR < end:
                    prefetch(latest, start + values[i + _FAR])
                row = np.uint64(start + values[i])
                if latest[row] != first + batch:
                    uses[found] = latest[row]
                    latest[row] = first + batch
                    found += 1
            begin = end
        uses_ends[batch] = found
    done = 0
    for batch in range(uses_ends.size):  # close the gaps
        for i in range(ends[batch * starts.size - 1] if batch else 0, uses_ends[batch]):
            uses[done] = uses[i]
            done += 1
        uses_ends[batch] = done
    return done
