"""SIEVE by the batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import Setting
from suite.simulate.models.queues import (
    ABSENT,
    FAR,
    IN_HAND,
    NONE,
    Listed,
    QueuedRows,
    append,
    empty_lists,
    let_go,
    remove,
)
from suite.simulate.traces.trace import Int32s
from systems.freq_cache.compiled import compiled, prefetch

_QUEUE = 0
"""The only list."""


class SieveModel(QueuedRows):
    """SIEVE: one queue, in which no row moves, and a hand that goes from the oldest row to the newest, and round.

    The hand unmarks rows that were hit since it last came by; the first that was not leaves, and the hand waits at the
    next. Newcomers queue behind the newest, unmarked.

    Memory: 4 B per row, 13 B per slot.
    """

    source = "Zhang et al., NSDI 2024; 1a1a11a/libCacheSim libCacheSim/cache/eviction/Sieve.c"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._lists = empty_lists(nodes=self.slots, lists=1)
        self._row = np.zeros(self.slots, np.int32)
        self._hit = np.zeros(self.slots, np.uint8)
        self._hand = NONE

    def _enter(self, rows: Int32s, missed: NDArray[np.bool_], batch: int) -> tuple[int, int]:
        cache = Listed(self._place, self._row, self._hit, self._lists)
        used, gone, self._hand = _enter_sieve(rows, missed, cache, self._used, self._hand)
        return used, gone


@compiled
def _enter_sieve(rows, missed, cache, used, hand):
    """Returns the slots in use, how many rows left, and where the hand is: at a slot, or NONE for the oldest."""
    place, row, hit, lists = cache
    for i in range(rows.size):
        if i + FAR < rows.size:
            prefetch(place, rows[i + FAR])
        slot = place[np.uint64(rows[i])]
        missed[i] = slot < 0
        if slot >= 0:
            hit[slot] = IN_HAND | 1
    gone = 0
    for i in range(rows.size):
        if not missed[i]:
            continue
        if used < hit.size:
            slot = np.int64(used)
            used += 1
        elif rows.size <= hit.size:
            slot = lists.oldest[_QUEUE] if hand == NONE else hand
            while hit[slot]:
                if not hit[slot] & IN_HAND:
                    hit[slot] = 0
                slot = np.int64(lists.newer[slot])
                if slot == NONE:
                    slot = lists.oldest[_QUEUE]
            hand = np.int64(lists.newer[slot])
            remove(lists, _QUEUE, slot)
            place[np.uint64(row[slot])] = ABSENT
            gone += 1
        else:
            continue
        append(lists, _QUEUE, slot)
        place[np.uint64(rows[i])] = slot
        row[slot] = rows[i]
        hit[slot] = IN_HAND
    let_go(rows, place, hit)
    return used, gone, hand
