"""S3-FIFO by the batch."""

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
    append_all,
    empty_lists,
    let_go,
    remove,
)
from suite.simulate.traces.trace import Int32s
from systems.freq_cache.compiled import compiled, prefetch

_SMALL, _MAIN, _GHOST, _FREE = range(4)
"""The lists: the two queues, the ghost, and nodes that the ghost may still take."""


class S3FifoModel(QueuedRows):
    """S3-FIFO: a small queue for newcomers, a main one for rows used again, and a ghost of the rows sent away.

    A tenth of the slots is the small queue's share, the rest the main one's; the ghost remembers as many rows as nine
    tenths of the slots, and none of their weights. A newcomer enters the small queue, or the main one if the ghost
    knows it. When the cache is full a row leaves the main queue if that exceeds its share or the small one is empty,
    else the small one. Of the small queue the oldest row leaves and enters the ghost, unless it has had at least two
    hits: then it moves to the main queue and is counted anew. Of the main queue the oldest row leaves, unless it has
    hits (at most three count): then it goes to the back with one less. A queue of which only rows of the batch in hand
    are left counts as empty.

    The rules are those of the paper's authors in libCacheSim, whose main queue gives way as the paper's does: a full
    cache whose small queue is below its share has a main queue above its own. With a single slot the small queue has
    it. Memory: 4 B per row, 25 B per slot.
    """

    source = "Yang et al., SOSP 2023; 1a1a11a/libCacheSim libCacheSim/cache/eviction/S3FIFO.c"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        ghosts = self.slots * 9 // 10
        self._main_slots = self.slots - max(1, self.slots // 10)
        self._lists = empty_lists(nodes=self.slots + ghosts, lists=4)
        self._row = np.zeros(self.slots + ghosts, np.int32)
        self._hits = np.zeros(self.slots, np.uint8)
        append_all(self._lists, _FREE, self.slots)

    def _enter(self, rows: Int32s, missed: NDArray[np.bool_], batch: int) -> tuple[int, int]:
        cache = Listed(self._place, self._row, self._hits, self._lists)
        used, gone = _enter_s3_fifo(rows, missed, cache, self._used, self._main_slots)
        return int(used), int(gone)


@compiled
def _enter_s3_fifo(rows, missed, cache, used, main_slots):
    """Returns the slots in use and how many rows left."""
    place, row, hits, lists = cache
    slots = hits.size
    for i in range(rows.size):
        if i + FAR < rows.size:
            prefetch(place, rows[i + FAR])
        slot = place[np.uint64(rows[i])]
        missed[i] = not 0 <= slot < slots
        if not missed[i]:
            hits[slot] = IN_HAND | min(hits[slot] + 1, 3)
    for which in (_SMALL, _MAIN):
        lists.turn[which] = lists.oldest[which]
    gone = 0
    for i in range(rows.size):
        if not missed[i] or (used == slots and rows.size > slots):
            continue
        ghost = place[np.uint64(rows[i])]
        if ghost != ABSENT:
            remove(lists, _GHOST, ghost)
            append(lists, _FREE, ghost)
        if used < slots:
            slot = used
            used += 1
        else:
            slot = _leaves_s3_fifo(cache, main_slots)
            gone += 1
        append(lists, _SMALL if ghost == ABSENT else _MAIN, slot)
        place[np.uint64(rows[i])] = slot
        row[slot] = rows[i]
        hits[slot] = IN_HAND
    let_go(rows, place, hits)
    return used, gone


@compiled
def _leaves_s3_fifo(cache, main_slots):
    """Send a row away. Returns its slot, which is in no list."""
    lists = cache.lists
    slot = np.int64(NONE)
    while slot == NONE:
        crowded = lists.size[_MAIN] > main_slots and lists.turn[_MAIN] != NONE
        slot = _leaves_main(cache) if crowded or lists.turn[_SMALL] == NONE else _leaves_small(cache)
    return slot


@compiled
def _leaves_small(cache):
    """Send the next row of the small queue away that was not hit twice, if there is one; those move to the main."""
    _, row, hits, lists = cache
    while lists.turn[_SMALL] != NONE:
        slot = lists.turn[_SMALL]
        if hits[slot] & IN_HAND:
            lists.turn[_SMALL] = lists.newer[slot]
            continue
        remove(lists, _SMALL, slot)
        if hits[slot] < 2:
            _haunt(cache, row[slot])
            return slot
        hits[slot] = 0
        append(lists, _MAIN, slot)
    return np.int64(NONE)


@compiled
def _leaves_main(cache):
    """Send the next row of the main queue away that has no hits, if there is one; those before it lose one each."""
    place, row, hits, lists = cache
    while lists.turn[_MAIN] != NONE:
        slot = lists.turn[_MAIN]
        if hits[slot] & IN_HAND:
            lists.turn[_MAIN] = lists.newer[slot]
            continue
        remove(lists, _MAIN, slot)
        if hits[slot] == 0:
            place[np.uint64(row[slot])] = ABSENT
            return slot
        hits[slot] -= 1
        append(lists, _MAIN, slot)
    return np.int64(NONE)


@compiled
def _haunt(cache, gone):
    """Have the ghost remember a row, if it must in place of the one it has known longest."""
    place, row, _, lists = cache
    place[np.uint64(gone)] = ABSENT
    ghost = lists.oldest[_FREE]
    if ghost != NONE:
        remove(lists, _FREE, ghost)
    elif lists.size[_GHOST]:
        ghost = lists.oldest[_GHOST]
        remove(lists, _GHOST, ghost)
        place[np.uint64(row[ghost])] = ABSENT
    else:
        return
    append(lists, _GHOST, ghost)
    row[ghost] = gone
    place[np.uint64(gone)] = ghost
