"""The slots of ColossalAI's cache with `policy=lfu`: the slots of the least counts are emptied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.hot_set import ranks
from suite.simulate.models.model import Bools
from suite.simulate.traces.trace import Int32s, Int64s, Seen, Trace
from systems.freq_cache.compiled import compiled, prefetch

ABSENT, COMING = -1, -2
"""In place of a slot: the row has none, or the operation in hand will give it one."""

_IN_HAND, _LOOSE = 1, 2
"""Flags of a slot: the operation in hand needs its row; it is not in the heap."""

_MOST = 2**32 - 1
_FAR = 32
"""How many rows ahead a loop asks for memory."""


class CountedSlots:
    """Slots with counts. Those that may leave are in a heap, least count first, under a count that may be outdated."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        rows, frequencies = _most_frequent(trace, warm)
        place = np.full(trace.rows, ABSENT, np.int32)
        row, heap = (np.zeros(slots, np.int32) for _ in range(2))
        accesses, under = (np.zeros(slots, np.uint32) for _ in range(2))
        self._state = _Counted(place, row, accesses, np.zeros(slots, np.uint8), under, heap)
        place[rows], row[:warm], accesses[:warm] = np.arange(warm), rows, np.minimum(frequencies, _MOST)
        heap[:warm] = np.argsort(accesses[:warm], kind="stable")  # in order, hence a heap
        under[:warm] = accesses[heap[:warm]]
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

    `heap`: slots, int32, and `under`: the counts that they were put there under, uint32; the true ones may be higher.
    """

    place: Int32s
    row: Int32s
    accesses: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    under: NDArray[np.uint32]
    heap: Int32s


@compiled
def _look_up(rows, state, missed):
    new = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(state.place, rows[i + _FAR])
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
def _empty_least(state, heaped, emptied):
    """Empty the slots of the least counts that the operation in hand does not need. Returns the size of the heap."""
    found = 0
    while found < emptied.size:
        slot = state.heap[0]
        if not state.flags[slot] & _IN_HAND and state.accesses[slot] > state.under[0]:
            _sift_down(state, heaped, state.accesses[slot], slot)
            continue
        heaped -= 1
        _sift_down(state, heaped, state.under[heaped], state.heap[heaped])
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
        if i + _FAR < rows.size:
            prefetch(state.place, rows[i + _FAR])
        slot = state.place[np.uint64(rows[i])]
        state.accesses[slot] = min(np.int64(state.accesses[slot]) + occurrences[i], _MOST)


@compiled
def _return_to_heap(rows, state, heaped):
    """The operation in hand is done with a batch: its loose slots return to the heap, whose size is returned."""
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(state.place, rows[i + _FAR])
        slot = state.place[np.uint64(rows[i])]
        if state.flags[slot] & _LOOSE:
            _sift_up(state, heaped, state.accesses[slot], slot)
            heaped += 1
        state.flags[slot] = 0
    return heaped


@compiled
def _before(count, slot, than_count, than_slot):
    return count < than_count or (count == than_count and slot < than_slot)


@compiled
def _sift_up(state, at, count, slot):
    """Put a slot into the heap, whose last place is `at`."""
    under, heap = state.under, state.heap
    while at > 0:
        parent = (at - 1) >> 1
        if not _before(count, slot, under[parent], heap[parent]):
            break
        under[at], heap[at] = under[parent], heap[parent]
        at = parent
    under[at], heap[at] = count, slot


@compiled
def _sift_down(state, heaped, count, slot):
    """Put a slot into the heap in place of its first."""
    under, heap = state.under, state.heap
    at = 0
    while 2 * at + 1 < heaped:
        child = 2 * at + 1
        if child + 1 < heaped and _before(under[child + 1], heap[child + 1], under[child], heap[child]):
            child += 1
        if not _before(under[child], heap[child], count, slot):
            break
        under[at], heap[at] = under[child], heap[child]
        at = child
    under[at], heap[at] = count, slot
