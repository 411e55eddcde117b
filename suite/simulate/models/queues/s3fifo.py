"""S3-FIFO by the batch."""

from collections.abc import Mapping

import numpy as np

from suite.simulate.models.model import Setting
from suite.simulate.models.queues.queued import (
    ABSENT,
    IN_HAND,
    NONE,
    OWN,
    USED,
    QueuedRows,
    append,
    append_all,
    let_go,
    remove,
)
from systems.freq_cache.compiled import compiled, prefetch_ahead

_SMALL, _MAIN, _GHOST, _FREE = range(4)
"""The lists: the two queues, the ghost, and nodes that the ghost may still take."""

_FILLED = OWN + 1
"""One more entry of the state."""


class S3FifoModel(QueuedRows):
    """S3-FIFO: a small queue for newcomers, a main one for rows used again, and a ghost of the rows sent away.

    A tenth of the slots is the small queue's share, the rest the main one's; the ghost remembers as many rows as nine
    tenths of the slots, and none of their weights. A newcomer enters the small queue, or the main one if the ghost
    knows it. When the cache is full a row leaves the main queue if that exceeds its share or the small one is empty,
    else the small one. Of the small queue the oldest row leaves and enters the ghost, unless it has had at least two
    hits: then it moves to the main queue and is counted anew. Of the main queue the oldest row leaves, unless it has
    hits (at most three count): then it goes to the back with one less. A queue of which only rows of the batch in hand
    are left counts as empty.

    A cache that is not full yet lets every newcomer into the small queue, as Algorithm 1 of the paper does. With
    `fill=main` those that find the small queue at its share enter the main one: libCacheSim's S3FIFO has the misses of
    that rule, one by one (docs/policies.md). With a single slot the small queue has it.

    Memory: 4 B per row, 25 B per slot.
    """

    variants = {"fill": ("small", "main")}
    source = "Yang, Zhang, Qiu, Yue and Rashmi, FIFO queues are all you need for cache eviction, SOSP 2023, Algorithm 1"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._enter = _enter
        small = max(1, self.slots // 10)
        filled = small if parameters.get("fill") == "main" else self.slots
        self._state = np.array([0, self.slots - small, filled])
        self._cache = listed = self._listed(lists=4, ghosts=self.slots * 9 // 10)
        append_all(listed.lists, _FREE, self.slots)


@compiled
def _enter(all_rows, ends, all_missed, first, cache):
    """`OWN` of the state is the main queue's share, `_FILLED` what the small one takes while there are free slots."""
    state, place, row, hits, lists = cache
    slots = hits.size
    begin = 0
    for end in ends:
        rows, missed = all_rows[begin:end], all_missed[begin:end]
        for i in range(rows.size):
            prefetch_ahead(place, rows, i)
            slot = place[np.uint64(rows[i])]
            missed[i] = not 0 <= slot < slots
            if not missed[i]:
                hits[slot] = IN_HAND | min(hits[slot] + 1, 3)
        for which in (_SMALL, _MAIN):
            lists.turn[which] = lists.oldest[which]
        for i in range(rows.size):
            if not missed[i] or (state[USED] == slots and rows.size > slots):
                continue
            ghost = place[np.uint64(rows[i])]
            if ghost != ABSENT:
                remove(lists, _GHOST, ghost)
                append(lists, _FREE, ghost)
            queue = _SMALL if ghost == ABSENT else _MAIN
            if state[USED] < slots:
                slot = state[USED]
                state[USED] += 1
                queue = _SMALL if lists.size[_SMALL] < state[_FILLED] else _MAIN
            else:
                slot = _leaves_s3_fifo(cache)
            append(lists, queue, slot)
            place[np.uint64(rows[i])] = slot
            row[slot] = rows[i]
            hits[slot] = IN_HAND
        let_go(rows, place, hits)
        begin = end


@compiled
def _leaves_s3_fifo(cache):
    """Send a row away. Returns its slot, which is in no list."""
    lists = cache.lists
    slot = np.int64(NONE)
    while slot == NONE:
        crowded = lists.size[_MAIN] > cache.state[OWN] and lists.turn[_MAIN] != NONE
        slot = _leaves(cache, _MAIN if crowded or lists.turn[_SMALL] == NONE else _SMALL)
    return slot


@compiled
def _leaves(cache, which):
    """Send the next row of a queue away that has not enough hits to stay, if there is one; those before it move on."""
    _, place, row, hits, lists = cache
    while lists.turn[which] != NONE:
        slot = lists.turn[which]
        if hits[slot] & IN_HAND:
            lists.turn[which] = lists.newer[slot]
            continue
        remove(lists, which, slot)
        if hits[slot] < (2 if which == _SMALL else 1):
            place[np.uint64(row[slot])] = ABSENT
            if which == _SMALL:
                _haunt(cache, row[slot])
            return slot
        hits[slot] = 0 if which == _SMALL else hits[slot] - 1
        append(lists, _MAIN, slot)
    return np.int64(NONE)


@compiled
def _haunt(cache, gone):
    """Have the ghost remember a row, if it must in place of the one it has known longest."""
    _, place, row, _, lists = cache
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
