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
from suite.simulate.traces.trace import MAKING, Trace
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

    Memory: 2 B per row of the tables and 2 B per distinct row of each batch; 4 B from 65,536 batches on. Where the next
    uses of all batches take more than `in_memory_bytes`, those of the first batches lie in a temporary file.

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
        self._kept: dict[int, Uses] = {}
        self._file: IO[bytes] | None = None
        self._places: dict[int, tuple[int, int]] = {}
        room = in_memory_bytes
        found: Uses = np.empty(trace.batch_lookups, kind)
        for number, ids in _backwards(trace, stop):
            uses: Uses = found[: _go_back(ids.values, ids.ends, ids.starts, number, self.first, found)]
            room -= uses.nbytes
            if room >= 0:
                self._kept[number] = uses.copy()
            else:
                self._spool(number, uses)

    def of(self, batch: int) -> Uses:
        """Next uses of the distinct rows of a batch, `[u]`, in order of first occurrence."""
        if batch in self._kept:
            return self._kept[batch]
        place, nbytes = self._places[batch]
        assert self._file is not None
        return np.frombuffer(os.pread(self._file.fileno(), nbytes, place), self.first.dtype)

    def _spool(self, number: int, uses: Uses) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
            self._places[number] = (self._file.seek(0, 2), uses.nbytes)
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


def _backwards(trace: Trace, stop: int) -> Iterator[tuple[int, Ids]]:
    """The batches from the last before `stop` to the first, with their numbers."""
    coming: deque[tuple[int, Future[Ids]]] = deque()
    with ThreadPoolExecutor(_MAKERS, thread_name_prefix="trace") as makers:
        for number in range(stop - 1, -1, -1):
            coming.append((number, makers.submit(trace.ids, number)))
            if len(coming) > _MAKERS:
                done, ids = coming.popleft()
                yield done, ids.result()
        for number, ids in coming:
            yield number, ids.result()


@compiled
def _go_back(values, ends, starts, now, latest, uses):
    """Write the next uses of a batch's distinct rows. Returns how many there are; `latest` is then `now` for them."""
    found = 0
    begin = 0
    for feature in range(ends.size):
        start = starts[feature]
        for i in range(begin, ends[feature]):
            if i + _FAR < ends[feature]:
                prefetch(latest, start + values[i + _FAR])
            row = np.uint64(start + values[i])
            if latest[row] != now:
                uses[found] = latest[row]
                latest[row] = now
                found += 1
        begin = ends[feature]
    return found
