"""LRU by the batch.

Defined for single accesses; with batches of one row it misses what another simulator misses
(`results/simulate/independent_check.py`). Brought to batches by these rules:

- The distinct rows of a batch are its accesses, in order of first occurrence. A row that occurs several times in a
  batch is accessed once.
- All rows of a batch must be resident together. None of them leaves to make room for another: when the turn of one
  comes, it is passed over and stays where it is.
- Every missing row enters the cache.
- A batch with more distinct rows than there are slots only fills free slots. No row leaves. Its other rows are read and
  written past the cache, once each, and the batch is counted as an overflow.
- Every cached row has been trained. So every row that leaves is written back, with its optimizer state.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import Int32s, Int64s, Seen
from systems.freq_cache.cache.policy import EMPTY, Queues, empty_queues, pop, push
from systems.freq_cache.compiled import compiled, prefetch_ahead

ABSENT = -1

USED, OLDEST = range(2)
"""Entries of the state: slots in use, and the oldest batch with a queue that may hold any."""


class LruModel(CacheModel):
    """The row whose last batch is the oldest leaves.

    Among rows of the same last batch those leave first that were queued then, in order of first occurrence: the rows
    that it fetched, and those whose turn to leave came while it was in hand. Rows that it merely hit follow, each when
    its turn has come under the batch it was queued at.

    Memory: 4 B per row, 13 B per slot, 8 B per batch of the span, and 256 B per batch or slot, whichever are fewer.
    """

    takes_runs = True

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        row, last = np.zeros((2, self.slots), np.int32)
        self._cache = _Recency(
            state=np.zeros(2, np.int64),
            place=np.full(setting.trace.rows, ABSENT, np.int32),
            row=row,
            last=last,
            queued=np.zeros(self.slots, np.bool_),
            queues=empty_queues(queues=setting.span.stop, slots=self.slots),
        )

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, _ = batch.unique
        missed = np.empty(rows.size, np.bool_)
        used = self._cache.state[USED]
        _enter(rows, batch.ends, missed, batch.number, self._cache)
        if tally is None:
            return
        misses = self.count(batch, missed, tally)
        tally.rows_fetched += misses
        tally.rows_written_back += misses - int(self._cache.state[USED] - used)  # left, or went past the cache


class _Recency(NamedTuple):
    """The slot of every row; the row and last batch of every slot, and whether it is queued."""

    state: Int64s
    place: Int32s
    row: Int32s
    last: Int32s
    queued: NDArray[np.bool_]
    queues: Queues


@compiled
def _enter(all_rows, ends, all_missed, first, cache):
    """Let batches access their distinct rows, one batch after another; `all_missed` receives which were absent.

    `ends`: where the rows of each batch end. `first`: the number of the first batch.
    """
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
        while queues.ends[2 * state[OLDEST]] == EMPTY:
            state[OLDEST] += 1
        slot = pop(queues, state[OLDEST])
        if last[slot] == state[OLDEST]:
            return slot
        if last[slot] == now:
            queued[slot] = False  # queued again when the batch in hand is done
        else:
            push(queues, last[slot], slot)
