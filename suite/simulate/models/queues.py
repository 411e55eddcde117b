"""Published policies that keep cached rows in queues, brought to batches: LRU, S3-FIFO and SIEVE.

What is the same for all three. The distinct rows of a batch are its accesses, in order of first occurrence; that a row
occurs several times in a batch says nothing. All rows of a batch must be resident together: none of them leaves for
another, and when the turn of one comes it is passed over and stays where it is. Every missing row enters. A batch with
more distinct rows than slots only fills slots that are free and drives nothing out: its other rows are read and written
past the cache, once each, and it is counted as an overflow. Every cached row has been trained, so every row that leaves
is written back, with its optimizer state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.traces.trace import Int32s, Seen
from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.queues import EMPTY, Queues, empty_queues, pop, push

ABSENT = -1
NONE = -1

_FAR = 32
"""How many rows ahead a loop asks for memory."""

_IN_HAND = 128
"""Flag of a cached row: the batch in hand has it. The flags below it are the policy's."""


class _QueuedRows(CacheModel):
    """The accesses of a batch, counted. To write: `_enter`."""

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._place = np.full(setting.trace.rows, ABSENT, np.int32)
        self._used = 0

    @property
    def slots(self) -> int:
        return min(self.setting.slots, self.setting.trace.rows)

    @abstractmethod
    def _enter(self, rows: Int32s, missed: NDArray[np.bool_], batch: int) -> tuple[int, int]:
        """Let a batch access its rows. Returns how many slots are in use and how many rows left.

        Args:
            rows: Distinct rows, int32 `[u]`, in order of first occurrence.
            missed: Receives whether each was absent, bool `[u]`.
            batch: Its number.
        """

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, occurrences = batch.unique
        missed = np.empty(rows.size, np.bool_)
        used, gone = self._enter(rows, missed, batch.number)
        entered = used - self._used + gone
        self._used = used
        if tally is None:
            return
        misses = int(np.count_nonzero(missed))
        tally.count(batch, rows, missed, self.setting.trace.table_starts)
        tally.lookup_misses = (tally.lookup_misses or 0) + int(occurrences[missed].sum())
        tally.rows_fetched += misses
        tally.rows_written_back += gone + misses - entered
        tally.overflow_batches += rows.size > self.slots


class LruModel(_QueuedRows):
    """The row whose last batch is the oldest leaves.

    Among rows of the same last batch those leave first that were queued then, in order of first occurrence: the rows
    that it fetched, and those whose turn to leave came while it was in hand. Rows that it merely hit follow, each when
    its turn has come under the batch it was queued at. So does our `Planner` with its LRU
    policy and without look-ahead, whose counts these are, one by one (unless rows of more than 32,768 batches ago are
    cached: all of these are equally old to it).

    Memory: 4 B per row, 13 B per slot, 272 B per batch of the span.
    """

    source = "systems/freq_cache/planner/planner.py"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._row, self._last = (np.zeros(self.slots, np.int32) for _ in range(2))
        self._queued = np.zeros(self.slots, np.bool_)
        self._queues = empty_queues(queues=setting.span.stop, slots=self.slots)
        self._oldest = 0

    def _enter(self, rows: Int32s, missed: NDArray[np.bool_], batch: int) -> tuple[int, int]:
        cache = _Recency(self._place, self._row, self._last, self._queued, self._queues)
        used, gone, self._oldest = _enter_lru(rows, missed, batch, cache, self._used, self._oldest)
        return used, gone


class S3FifoModel(_QueuedRows):
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
        self._lists = _empty_lists(nodes=self.slots + ghosts)
        self._row = np.zeros(self.slots + ghosts, np.int32)
        self._hits = np.zeros(self.slots, np.uint8)
        _append_all(self._lists, _FREE, self.slots)

    def _enter(self, rows: Int32s, missed: NDArray[np.bool_], batch: int) -> tuple[int, int]:
        cache = _Listed(self._place, self._row, self._hits, self._lists)
        used, gone = _enter_s3_fifo(rows, missed, cache, self._used, self._main_slots)
        return int(used), int(gone)


class SieveModel(_QueuedRows):
    """SIEVE: one queue, in which no row moves, and a hand that goes from the oldest row to the newest, and round.

    The hand unmarks rows that were hit since it last came by; the first that was not leaves, and the hand waits at the
    next. Newcomers queue behind the newest, unmarked.

    Memory: 4 B per row, 13 B per slot.
    """

    source = "Zhang et al., NSDI 2024; 1a1a11a/libCacheSim libCacheSim/cache/eviction/Sieve.c"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._lists = _empty_lists(nodes=self.slots)
        self._row = np.zeros(self.slots, np.int32)
        self._hit = np.zeros(self.slots, np.uint8)
        self._hand = NONE

    def _enter(self, rows: Int32s, missed: NDArray[np.bool_], batch: int) -> tuple[int, int]:
        cache = _Listed(self._place, self._row, self._hit, self._lists)
        used, gone, self._hand = _enter_sieve(rows, missed, cache, self._used, self._hand)
        return used, gone


class _Recency(NamedTuple):
    """What LRU knows: of every row its slot; of every slot its row, last batch, and whether it is queued."""

    place: Int32s
    row: Int32s
    last: Int32s
    queued: NDArray[np.bool_]
    queues: Queues


@compiled
def _enter_lru(rows, missed, now, cache, used, oldest):
    """Returns the slots in use, how many rows left, and the oldest batch with a queue that may hold any."""
    place, row, last, queued, queues = cache
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(place, rows[i + _FAR])
        slot = place[np.uint64(rows[i])]
        missed[i] = slot < 0
        if slot >= 0:
            last[slot] = now
    gone = 0
    for i in range(rows.size):
        if not missed[i]:
            continue
        if used < row.size:
            slot = used
            used += 1
        elif rows.size <= row.size:
            slot, oldest = _least_recent(now, cache, oldest)
            place[np.uint64(row[slot])] = ABSENT
            gone += 1
        else:
            continue
        place[np.uint64(rows[i])] = slot
        row[slot] = rows[i]
        last[slot] = now
        queued[slot] = False
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(place, rows[i + _FAR])
        slot = place[np.uint64(rows[i])]
        if slot >= 0 and not queued[slot]:
            queued[slot] = True
            push(queues, now, slot)
    return used, gone, oldest


@compiled
def _least_recent(now, cache, oldest):
    """The slot to take, off its queue, and the oldest batch with a queue that may hold any."""
    last, queued, queues = cache.last, cache.queued, cache.queues
    while True:
        while queues.ends[2 * oldest] == EMPTY:
            oldest += 1
        slot = pop(queues, oldest)
        if last[slot] == oldest:
            return slot, oldest
        if last[slot] == now:
            queued[slot] = False  # queued again when the batch in hand is done
        else:
            push(queues, last[slot], slot)


_SMALL, _MAIN, _GHOST, _FREE = 0, 1, 2, 3
"""Lists of S3-FIFO; the last has the ghost's free nodes. SIEVE has the first only."""


class _Lists(NamedTuple):
    """Lists of nodes: of every node its neighbours, int32; of every list its ends and size, int64 `[4]`.

    `turn`, int64 `[4]`: of every list the first node whose turn in the batch in hand has not come.
    """

    older: Int32s
    newer: Int32s
    oldest: NDArray[np.int64]
    newest: NDArray[np.int64]
    size: NDArray[np.int64]
    turn: NDArray[np.int64]


class _Listed(NamedTuple):
    """What S3-FIFO and SIEVE know: of every row its node; of every node its row and flags."""

    place: Int32s
    row: Int32s
    flags: NDArray[np.uint8]
    lists: _Lists


def _empty_lists(*, nodes: int) -> _Lists:
    older, newer = (np.full(nodes, NONE, np.int32) for _ in range(2))
    oldest, newest, turn = (np.full(4, NONE, np.int64) for _ in range(3))
    return _Lists(older, newer, oldest, newest, np.zeros(4, np.int64), turn)


@compiled
def _append(lists, which, node):
    """Make a node the newest of a list."""
    back = lists.newest[which]
    lists.older[node] = back
    lists.newer[node] = NONE
    if back == NONE:
        lists.oldest[which] = node
    else:
        lists.newer[back] = node
    lists.newest[which] = node
    lists.size[which] += 1
    if lists.turn[which] == NONE:
        lists.turn[which] = node


@compiled
def _append_all(lists, which, node):
    """Append a node and all behind it."""
    for i in range(node, lists.older.size):
        _append(lists, which, i)


@compiled
def _remove(lists, which, node):
    """Take a node out of its list; if its turn has come, the next one's has."""
    older, newer = lists.older[node], lists.newer[node]
    if older == NONE:
        lists.oldest[which] = newer
    else:
        lists.newer[older] = newer
    if newer == NONE:
        lists.newest[which] = older
    else:
        lists.older[newer] = older
    lists.size[which] -= 1
    if lists.turn[which] == node:
        lists.turn[which] = newer


@compiled
def _enter_s3_fifo(rows, missed, cache, used, main_slots):
    """Returns the slots in use and how many rows left."""
    place, row, hits, lists = cache
    slots = hits.size
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(place, rows[i + _FAR])
        slot = place[np.uint64(rows[i])]
        missed[i] = not 0 <= slot < slots
        if not missed[i]:
            hits[slot] = _IN_HAND | min(hits[slot] + 1, 3)
    for which in (_SMALL, _MAIN):
        lists.turn[which] = lists.oldest[which]
    gone = 0
    for i in range(rows.size):
        if not missed[i] or (used == slots and rows.size > slots):
            continue
        ghost = place[np.uint64(rows[i])]
        if ghost != ABSENT:
            _remove(lists, _GHOST, ghost)
            _append(lists, _FREE, ghost)
        if used < slots:
            slot = used
            used += 1
        else:
            slot = _leaves_s3_fifo(cache, main_slots)
            gone += 1
        _append(lists, _SMALL if ghost == ABSENT else _MAIN, slot)
        place[np.uint64(rows[i])] = slot
        row[slot] = rows[i]
        hits[slot] = _IN_HAND
    _let_go(rows, place, hits)
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
        if hits[slot] & _IN_HAND:
            lists.turn[_SMALL] = lists.newer[slot]
            continue
        _remove(lists, _SMALL, slot)
        if hits[slot] < 2:
            _haunt(cache, row[slot])
            return slot
        hits[slot] = 0
        _append(lists, _MAIN, slot)
    return np.int64(NONE)


@compiled
def _leaves_main(cache):
    """Send the next row of the main queue away that has no hits, if there is one; those before it lose one each."""
    place, row, hits, lists = cache
    while lists.turn[_MAIN] != NONE:
        slot = lists.turn[_MAIN]
        if hits[slot] & _IN_HAND:
            lists.turn[_MAIN] = lists.newer[slot]
            continue
        _remove(lists, _MAIN, slot)
        if hits[slot] == 0:
            place[np.uint64(row[slot])] = ABSENT
            return slot
        hits[slot] -= 1
        _append(lists, _MAIN, slot)
    return np.int64(NONE)


@compiled
def _haunt(cache, gone):
    """Have the ghost remember a row, if it must in place of the one it has known longest."""
    place, row, _, lists = cache
    place[np.uint64(gone)] = ABSENT
    ghost = lists.oldest[_FREE]
    if ghost != NONE:
        _remove(lists, _FREE, ghost)
    elif lists.size[_GHOST]:
        ghost = lists.oldest[_GHOST]
        _remove(lists, _GHOST, ghost)
        place[np.uint64(row[ghost])] = ABSENT
    else:
        return
    _append(lists, _GHOST, ghost)
    row[ghost] = gone
    place[np.uint64(gone)] = ghost


@compiled
def _enter_sieve(rows, missed, cache, used, hand):
    """Returns the slots in use, how many rows left, and where the hand is: at a slot, or NONE for the oldest."""
    place, row, hit, lists = cache
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(place, rows[i + _FAR])
        slot = place[np.uint64(rows[i])]
        missed[i] = slot < 0
        if slot >= 0:
            hit[slot] = _IN_HAND | 1
    gone = 0
    for i in range(rows.size):
        if not missed[i]:
            continue
        if used < hit.size:
            slot = np.int64(used)
            used += 1
        elif rows.size <= hit.size:
            slot = lists.oldest[_SMALL] if hand == NONE else hand
            while hit[slot]:
                if not hit[slot] & _IN_HAND:
                    hit[slot] = 0
                slot = np.int64(lists.newer[slot])
                if slot == NONE:
                    slot = lists.oldest[_SMALL]
            hand = np.int64(lists.newer[slot])
            _remove(lists, _SMALL, slot)
            place[np.uint64(row[slot])] = ABSENT
            gone += 1
        else:
            continue
        _append(lists, _SMALL, slot)
        place[np.uint64(rows[i])] = slot
        row[slot] = rows[i]
        hit[slot] = _IN_HAND
    _let_go(rows, place, hit)
    return used, gone, hand


@compiled
def _let_go(rows, place, flags):
    """The batch in hand is done."""
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(place, rows[i + _FAR])
        slot = place[np.uint64(rows[i])]
        if 0 <= slot < flags.size:
            flags[slot] &= _IN_HAND - 1
