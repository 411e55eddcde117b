"""LFU with dynamic aging by the batch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from suite.simulate.models.model import Setting
from suite.simulate.models.queues.queued import ABSENT, IN_HAND, NONE, USED, Listed, QueuedRows, append, let_go, remove
from suite.simulate.traces.trace import Int32s, Int64s
from systems.freq_cache.compiled import compiled, prefetch_ahead

_AGE, _LOWEST = range(2)
"""Entries of the clock: the highest key of a row that left, and a key that no cached row's is below."""


class LfudaModel(QueuedRows):
    """LFUDA: a row's key is its accesses since it entered plus the cache's age, which is the key of what left last.

    The key is set at every access, with the age of that moment; the row of the lowest key leaves, of equals the one
    accessed longest ago. So counts that nobody adds to are overtaken by those of newcomers, which start at the age. The
    age never falls: a row whose key is below it, because it was in hand when others left, leaves it as it is.

    Memory: 4 B per row, 25 B per slot, 64 B per batch of the span.
    """

    source = "Arlitt, Cherkasova, Dilley, Friedrich and Jin, SIGMETRICS Performance Evaluation Review 27(4), 2000"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._enter = _enter
        # Keys lie less than two replays apart: each is at most a batch's count above an age, and at least the age that
        # the cache had two rises ago. A list serves all keys of one remainder.
        self._cache = _Aging(
            self._listed(lists=2 * setting.span.stop + 2),
            accesses=np.zeros(self.slots, np.int32),
            key=np.zeros(self.slots, np.int64),
            clock=np.zeros(2, np.int64),
        )


class _Aging(NamedTuple):
    """The cache, and of every slot its accesses and its key; list `key % lists` has the slots of a key."""

    cached: Listed
    accesses: Int32s
    key: Int64s
    clock: Int64s


@compiled
def _enter(all_rows, ends, all_missed, first, cache):
    state, place, row, flags, lists = cache.cached
    begin = 0
    for end in ends:
        rows, missed = all_rows[begin:end], all_missed[begin:end]
        for i in range(rows.size):
            prefetch_ahead(place, rows, i)
            slot = place[np.uint64(rows[i])]
            missed[i] = slot < 0
            if slot >= 0:
                remove(lists, cache.key[slot] % lists.oldest.size, slot)
                cache.accesses[slot] += 1
                _queue(cache, np.int64(slot))
        lowest = cache.clock[_LOWEST]
        for i in range(rows.size):
            if not missed[i]:
                continue
            if state[USED] < row.size:
                slot = state[USED]
                state[USED] += 1
            elif rows.size <= row.size:
                lowest = _lowest(cache, lowest)
                slot = lists.oldest[lowest % lists.oldest.size]
                remove(lists, lowest % lists.oldest.size, slot)
                place[np.uint64(row[slot])] = ABSENT
                cache.clock[_AGE] = max(cache.clock[_AGE], lowest)
            else:
                continue
            place[np.uint64(rows[i])] = slot
            row[slot] = rows[i]
            cache.accesses[slot] = 1
            _queue(cache, slot)
        let_go(rows, place, flags)
        begin = end


@compiled
def _queue(cache, slot):
    """Give the row of a slot, which the batch in hand has, its key."""
    lists = cache.cached.lists
    cache.key[slot] = cache.accesses[slot] + cache.clock[_AGE]
    append(lists, cache.key[slot] % lists.oldest.size, slot)
    cache.cached.flags[slot] = IN_HAND


@compiled
def _lowest(cache, key):
    """The lowest key, from this one on, of a row that the batch in hand does not have: in a list such rows are last."""
    oldest, flags = cache.cached.lists.oldest, cache.cached.flags
    while oldest[cache.clock[_LOWEST] % oldest.size] == NONE:
        cache.clock[_LOWEST] += 1
    key = max(key, cache.clock[_LOWEST])
    while oldest[key % oldest.size] == NONE or flags[oldest[key % oldest.size]] & IN_HAND:
        key += 1
    return key
