"""LRU by the batch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import Setting
from suite.simulate.models.queues.queued import ABSENT, OWN, USED, QueuedRows
from suite.simulate.traces.trace import Int32s, Int64s
from systems.freq_cache.compiled import compiled, prefetch_ahead
from systems.freq_cache.planner.queues import EMPTY, Queues, empty_queues, pop, push


class LruModel(QueuedRows):
    """The row whose last batch is the oldest leaves.

    Among rows of the same last batch those leave first that were queued then, in order of first occurrence: the rows
    that it fetched, and those whose turn to leave came while it was in hand. Rows that it merely hit follow, each when
    its turn has come under the batch it was queued at.

    Memory: 4 B per row, 13 B per slot, 8 B per batch of the span, and 256 B per batch or slot, whichever are fewer.
    """

    source = "suite/simulate/models/queues/lru.py"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._enter = _enter
        row, last = np.zeros((2, self.slots), np.int32)
        queues = empty_queues(queues=setting.span.stop, slots=self.slots)
        self._cache = _Recency(self._state, self._place, row, last, np.zeros(self.slots, np.bool_), queues)


class _Recency(NamedTuple):
    """What LRU knows: of every row its slot; of every slot its row, last batch, and whether it is queued.

    `OWN` of the state: the oldest batch with a queue that may hold any.
    """

    state: Int64s
    place: Int32s
    row: Int32s
    last: Int32s
    queued: NDArray[np.bool_]
    queues: Queues


@compiled
def _enter(all_rows, ends, all_missed, first, cache):
    state, place, row, last, queued, queues = cache
    begin, now = 0, first - 1
    for end in ends:
        rows, missed, now = all_rows[begin:end], all_missed[begin:end], now + 1
        for i in range(rows.size):
            prefetch_ahead(place, rows, i)
            slot = place[np.uint64(rows[i])]
            missed[i] = slot < 0
            if slot >= 0:
                last[slot] = now
        for i in range(rows.size):
            if not missed[i]:
                continue
            if state[USED] < row.size:
                slot = state[USED]
                state[USED] += 1
            elif rows.size <= row.size:
                slot = np.int64(_least_recent(now, cache))
                place[np.uint64(row[slot])] = ABSENT
            else:
                continue
            place[np.uint64(rows[i])] = slot
            row[slot] = rows[i]
            last[slot] = now
            queued[slot] = False
        for i in range(rows.size):
            prefetch_ahead(place, rows, i)
            slot = place[np.uint64(rows[i])]
            if slot >= 0 and not queued[slot]:
                queued[slot] = True
                push(queues, now, slot)
        begin = end


@compiled
def _least_recent(now, cache):
    """The slot to take, off its queue."""
    state, last, queued, queues = cache.state, cache.last, cache.queued, cache.queues
    while True:
        while queues.ends[2 * state[OWN]] == EMPTY:
            state[OWN] += 1
        slot = pop(queues, state[OWN])
        if last[slot] == state[OWN]:
            return slot
        if last[slot] == now:
            queued[slot] = False  # queued again when the batch in hand is done
        else:
            push(queues, last[slot], slot)
