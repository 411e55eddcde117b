"""The rows of ColossalAI's cache with `policy=dataset`: the resident rows of the largest ranks leave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from suite.simulate.models.hot_set import ranks
from suite.simulate.models.model import Bools
from suite.simulate.traces.trace import Int32s, Seen, Trace
from systems.freq_cache.compiled import compiled, prefetch_ahead


class RankedRows:
    """Resident rows as bits in order of rank, and those of the operation in hand. Slots do not matter here."""

    def __init__(self, trace: Trace, *, slots: int, warm: int) -> None:
        self._ranks = ranks(trace)
        self._resident, self._in_hand = (np.zeros((trace.rows + 63) // 64, np.uint64) for _ in range(2))
        _set_lowest(self._resident, warm)

    def look_up(self, rows: Int32s, missed: Bools) -> int:
        return int(_look_up(rows, self._ranks, self._resident, self._in_hand, missed))

    def replace(self, batches: Sequence[Seen], missed: Sequence[Bools], *, used: int, gone: int) -> None:
        _clear_highest(self._resident, self._in_hand, gone)
        for batch in batches:
            _enter(batch.unique[0], self._ranks, self._resident, self._in_hand)


@compiled
def _bit(rank):
    return np.uint64(1) << np.uint64(rank & 63)


@compiled
def _set_lowest(bits, wanted):
    for rank in range(wanted):
        bits[rank >> 6] |= _bit(rank)


@compiled
def _look_up(rows, ranked, resident, in_hand, missed):
    new = 0
    for i in range(rows.size):
        prefetch_ahead(ranked, rows, i)
        rank = ranked[np.uint64(rows[i])]
        word, bit = rank >> 6, _bit(rank)
        missed[i] = (resident[word] | in_hand[word]) & bit == 0
        new += in_hand[word] & bit == 0
        in_hand[word] |= bit
    return new


@compiled
def _clear_highest(resident, in_hand, wanted):
    """Take the highest ranks out that the operation in hand does not need."""
    word = resident.size
    while wanted > 0:
        word -= 1
        if resident[word] & ~in_hand[word] == 0:
            continue
        for i in range(63, -1, -1):
            bit = _bit(i)
            if wanted > 0 and resident[word] & ~in_hand[word] & bit:
                resident[word] ^= bit
                wanted -= 1


@compiled
def _enter(rows, ranked, resident, in_hand):
    """Make the rows of a batch resident, and end the operation that they were in."""
    for i in range(rows.size):
        prefetch_ahead(ranked, rows, i)
        rank = ranked[np.uint64(rows[i])]
        resident[rank >> 6] |= _bit(rank)
        in_hand[rank >> 6] &= ~_bit(rank)
