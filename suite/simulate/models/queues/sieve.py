"""SIEVE by the batch."""

from collections.abc import Mapping

import numpy as np

from suite.simulate.models.model import Setting
from suite.simulate.models.queues.queued import ABSENT, IN_HAND, NONE, OWN, USED, QueuedRows, append, let_go, remove
from systems.freq_cache.compiled import compiled, prefetch_ahead

_QUEUE = 0
"""The only list."""


class SieveModel(QueuedRows):
    """SIEVE: one queue, in which no row moves, and a hand that goes from the oldest row to the newest, and round.

    The hand unmarks rows that were hit since it last came by; the first that was not leaves, and the hand waits at the
    next. Newcomers queue behind the newest, unmarked.

    Memory: 4 B per row, 13 B per slot.
    """

    source = "Zhang, Yang, Yue, Vigfusson and Rashmi, SIEVE is simpler than LRU, NSDI 2024, Algorithm 1"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._enter = _enter
        self._state[OWN] = NONE
        self._cache = self._listed(lists=1)


@compiled
def _enter(all_rows, ends, all_missed, first, cache):
    """`OWN` of the state is where the hand is: at a slot, or NONE for the oldest."""
    state, place, row, hit, lists = cache
    begin = 0
    for end in ends:
        rows, missed = all_rows[begin:end], all_missed[begin:end]
        for i in range(rows.size):
            prefetch_ahead(place, rows, i)
            slot = place[np.uint64(rows[i])]
            missed[i] = slot < 0
            if slot >= 0:
                hit[slot] = IN_HAND | 1
        for i in range(rows.size):
            if not missed[i]:
                continue
            if state[USED] < hit.size:
                slot = state[USED]
                state[USED] += 1
            elif rows.size <= hit.size:
                slot = lists.oldest[_QUEUE] if state[OWN] == NONE else state[OWN]
                while hit[slot]:
                    if not hit[slot] & IN_HAND:
                        hit[slot] = 0
                    slot = np.int64(lists.newer[slot])
                    if slot == NONE:
                        slot = lists.oldest[_QUEUE]
                state[OWN] = lists.newer[slot]
                remove(lists, _QUEUE, slot)
                place[np.uint64(row[slot])] = ABSENT
            else:
                continue
            append(lists, _QUEUE, slot)
            place[np.uint64(rows[i])] = slot
            row[slot] = rows[i]
            hit[slot] = IN_HAND
        let_go(rows, place, hit)
        begin = end
