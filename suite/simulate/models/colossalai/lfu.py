"""The slots of ColossalAI's cache with `policy=lfu`: the slots of the least counts are emptied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.hot_set import ranks
from suite.simulate.models.model import Bools
from suite.simulate.traces.trace import Int32s, Int64s, Seen, Trace
from systems.freq_cache.compiled import compiled, prefetch_ahead

ABSENT, COMING = -1, -2
"""In place of a slot: the row has none, or the operation in hand will give it one."""

_IN_HAND, _LOOSE = 1, 2
"""Flags of a slot: the operation in hand needs its row; it is not in the heap."""

_MOST = 2**32 - 1
_COUNT_BITS = np.uint64(32)


class CountedSlots:
    """Slots with counts. Those that may leave are in a heap, least count first, under a count that may be outdated."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        rows, frequencies = _most_frequent(trace, warm)
        place = np.full(trace.rows, ABSENT, np.int32)
        row, accesses, heap = np.zeros(slots, np.int32), np.zeros(slots, np.uint32), np.zeros(slots, np.uint64)
        self._state = _Counted(place, row, accesses, np.zeros(slots, np.uint8), heap)
        place[rows], row[:warm], accesses[:warm] = np.arange(warm), rows, np.minimum(frequencies, _MOST)
        keys = accesses[:warm].astype(np.uint64) << _COUNT_BITS | np.arange(warm, dtype=np.uint64)
        heap[:warm] = np.sort(keys)  # in order, hence a heap
        self._heaped = warm

    def look_up(self, rows: Int32s, missed: Bools) -> int:
        return int(_look_up(rows, self._state, missed))

    def replace(self, batches: Sequence[Seen], missed: Sequence[Bools], *, used: int, gone: int) -> None:
        emptied = np.empty(gone, np.int32)
        self._heaped = _empty_least(self._state, self._heaped, emptied)
        entering = np.concatenate([batch.unique[0][absent] for batch, absent in zip(batches, missed, strict=True)])
        free = np.arange(used, used + entering.size - gone, dtype=np.int32)
        _fill(np.sort(entering), np.concatenate([np.sort(emptied), free]), self._state)
        for batch in batches:
            _add(*batch.unique, self._state)
        for batch in batches:
            self._heaped = _return_to_heap(batch.unique[0], self._state, self._heaped)


def _most_frequent(trace: Trace, wanted: int) -> tuple[Int32s, Int64s]:
    """The most frequent rows, int32 `[wanted]`, in order of rank, and their frequencies."""
    ranked = ranks(trace)
    rows, found = np.empty(wanted, np.int32), np.empty(wanted, np.int64)
    chosen = np.flatnonzero(ranked < wanted)
    rows[ranked[chosen]] = chosen
    for start, counts in zip(trace.table_starts, trace.frequencies(), strict=True):
        mine = (rows >= start) & (rows < start + counts.size)
        found[mine] = counts[rows[mine] - start]
    return rows, found


class _Counted(NamedTuple):
    """Of every row its slot, int32; of every slot its row, int32, its accesses, uint32, and flags, uint8.

    `heap`: `_key` of slots, uint64, with the counts that they were put there under; the true ones may be higher.
    """

    place: Int32s
    row: Int32s
    accesses: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    heap: NDArray[np.uint64]


@compiled
def _look_up(rows, state, missed):
    new = 0
    for i in range(rows.size):
        prefetch_ahead(state.place, rows, i)
        slot = state.place[np.uint64(rows[i])]
        missed[i] = slot == ABSENT
        if slot == ABSENT:
            state.place[np.uint64(rows[i])] = COMING
            new += 1
        elif slot != COMING:
            new += not state.flags[slot] & _IN_HAND
            state.flags[slot] |= _IN_HAND
    return new


@compiled
def _key(count, slot):
    return np.uint64(count) << _COUNT_BITS | np.uint64(slot)


@compiled
def _empty_least(state, heaped, emptied):
    """Empty the slots of the least counts that the operation in hand does not need. Returns the size of the heap."""
    heap = state.heap
    found = 0
    while found < emptied.size:
        slot = np.int64(heap[0] & np.uint64(_MOST))
        if not state.flags[slot] & _IN_HAND and state.accesses[slot] > heap[0] >> _COUNT_BITS:
            _sift_down(heap, heaped, _key(state.accesses[slot], slot))
            continue
        heaped -= 1
        _sift_down(heap, heaped, heap[heaped])
        if state.flags[slot] & _IN_HAND:
            state.flags[slot] |= _LOOSE
        else:
            state.place[np.uint64(state.row[slot])] = ABSENT
            emptied[found] = slot
            found += 1
    return heaped


@compiled
def _fill(rows, slots, state):
    for i in range(rows.size):
        slot = slots[i]
        state.place[np.uint64(rows[i])] = slot
        state.row[slot] = rows[i]
        state.accesses[slot] = 0
        state.flags[slot] = _IN_HAND | _LOOSE


@compiled
def _add(rows, occurrences, state):
    for i in range(rows.size):
        prefetch_ahead(state.place, rows, i)
        slot = state.place[np.uint64(rows[i])]
        state.accesses[slot] = min(np.int64(state.accesses[slot]) + occurrences[i], _MOST)


@compiled
def _return_to_heap(rows, state, heaped):
    """The operation in hand is done with a batch: its loose slots return to the heap, whose size is returned."""
    for i in range(rows.size):
        prefetch_ahead(state.place, rows, i)
        slot = state.place[np.uint64(rows[i])]
        if state.flags[slot] & _LOOSE:
            _sift_up(state.heap, heaped, _key(state.accesses[slot], slot))
            heaped += 1
        state.flags[slot] = 0
    return heaped


@compiled
def _sift_up(heap, at, key):
    """Put a key into the heap, whose last place is `at`."""
    while at > 0 and key < heap[(at - 1) >> 1]:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = key


@compiled
def _sift_down(heap, heaped, key):
    """Put a key into the heap in place of its first."""
    at = 0
    while 2 * at + 1 < heaped:
        child = 2 * at + 1
        if child + 1 < heaped and heap[child + 1] < heap[child]:
            child += 1
        if key < heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
