"""fbgemm's device cache in front of UVM: 32 ways, sets by hash, rows that find no place stay behind the link.

The kernels order the 32 ways of a set by a bitonic network over the lanes of a warp, which is not stable. Source:
fbgemm v1.8.0, `fbgemm_gpu/include/fbgemm_gpu/utils/bitonic_sort.cuh`, the same in v1.6.0: sorted runs of 1, 2, 4, 8 and
16 lanes are merged; a merge first compares every lane of a pair of runs with its mirror image, then lanes at halving
distances. Two lanes swap only where the lower one has the greater key, so equal keys stay apart as they are.

Other rules: `fbgemm_gpu/src/split_embeddings_cache/{lru,lfu}_cache_{find,populate}.cu`, `lxu_cache.cu`, `common.cuh`;
`split_table_batched_embeddings_ops_training.py`.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from suite.simulate.models.model import Bools, CacheModel, CannotReplay, Setting, Tally
from suite.simulate.trace import Int32s, Seen
from systems.freq_cache.compiled import compiled, prefetch

WAYS = 32
"""Associativity on NVIDIA devices: a lane of a warp looks after each."""
EMPTY = -1

_FAR = 16
"""Rows by which a loop asks for memory ahead."""
_LANE_BITS = 5
_COUNT_BITS = 40
_MOST_LFU_SETS = 2**24 - 2
"""With LFU fbgemm sorts by set and count in one number of 64 bits, of which the set has 24."""


class _Populated(NamedTuple):
    """A batch whose rows have been placed, and which waits for its lookup.

    Of each of its distinct rows, `[u]`: its set, int32; whether it was absent when the batch arrived, bool; and its
    slot once all were placed, int32, or `EMPTY`. `inserted` rows were brought in, `evicted` ones left for them.
    """

    sets: Int32s
    missed: Bools
    slots: Int32s
    inserted: int
    evicted: int


class FbgemmCacheModel(CacheModel):
    """One cache of fbgemm's over all tables, as a TBE has it: counters are exact, tie for tie.

    The slots asked for are rounded up to whole sets. A row belongs to one set, found by hashing its number. A batch is
    populated: its absent rows are brought in set by set, at most 32 to a set. With LRU those of the lowest number come
    first and take the ways used longest ago, none that this batch uses. With LFU, where occurrences of every row are
    counted for good, those of the highest count come first and take the ways of the lowest counts, unless these are
    higher; also ways that this batch uses. Then it is looked up. A row that is not cached by then is a conflict miss:
    forward reads it over the link for every occurrence, backward reads and writes it once. There is no dirty bit: every
    row that leaves is written.

    With `prefetch=on` the next batch is populated before a batch is trained, and ways that either of them uses are not
    given away. fbgemm counts locks for that; one batch ahead, the locked ways are just those stamped by these two. Rows
    that the next batch brought in are no longer updated over the link.

    Details: rows `inserted` and `evicted`; `conflict_unique_misses` and `conflict_lookups`, distinct rows and ids that
    were not cached at the lookup; `conflict_updates`, rows that backward read and wrote over the link; `calls` with any
    ids, and of these `calls_with_misses`.

    Memory: 8 B per slot; with LFU 12 B per slot, and 8 B per row for its count.
    """

    variants = {"policy": ("lru", "lfu"), "prefetch": ("off", "on")}
    bypasses = True
    state_by_batch = True

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._lfu = parameters["policy"] == "lfu"
        self._prefetches = parameters["prefetch"] == "on"
        if self._lfu and self._prefetches:
            raise CannotReplay("fbgemm prefetches with policy=lru only")
        self._sets = max(1, -(-setting.slots // WAYS))
        if self._lfu and self._sets > _MOST_LFU_SETS:
            raise CannotReplay(f"with policy=lfu fbgemm has at most {_MOST_LFU_SETS:,} sets of {WAYS} slots")
        slots = self._sets * WAYS
        self._row = np.full(slots, EMPTY, np.int32)
        self._key = np.full(slots, EMPTY, np.int64) if self._lfu else np.zeros(slots, np.int32)  # see `place`
        self._count = np.zeros(setting.trace.rows if self._lfu else 0, np.int64)
        self._time = 1
        self._populated: deque[_Populated] = deque()

    @property
    def slots(self) -> int:
        return self._sets * WAYS

    @property
    def cached_rows(self) -> Int32s:
        """The row in every way of every set, int32 `[sets, 32]`, or `EMPTY`."""
        return self._row.reshape(self._sets, WAYS).copy()

    @property
    def look_ahead(self) -> int:
        return int(self._prefetches)

    def announce(self, batch: Seen) -> None:
        """Populate: without prefetching it is the batch stepped next."""
        rows, occurrences = batch.unique
        self._time += 1
        sets, slots = sets_of(rows, self._sets), np.empty(rows.size, np.int32)
        find(rows, sets, self._row, slots)
        missed = slots == EMPTY
        counts = np.full(rows.size, self._time, np.int64)
        if self._lfu:
            # while a row is cached, its count is kept with its slot
            self._count[rows[missed]] += occurrences[missed]
            counts[missed] = self._count[rows[missed]]
            self._key[slots[~missed]] += occurrences[~missed]
        else:
            self._key[slots[~missed]] = self._time
        came = np.flatnonzero(missed)
        came = came[np.argsort(rows[came])]  # of a set and a count the lower row comes first
        came = came[np.argsort((sets[came].astype(np.int64) << _COUNT_BITS) - counts[came], kind="stable")]
        kept_from = self._time - self.look_ahead
        arriving, room = (rows[came], counts[came], sets[came]), (np.empty(WAYS, np.int64), np.empty(WAYS, np.int32))
        inserted, evicted = place(*arriving, self._row, self._key, self._count, kept_from, *room)
        find(rows, sets, self._row, slots)
        self._populated.append(_Populated(sets, missed, slots, inserted, evicted))

    def step(self, batch: Seen, tally: Tally | None) -> None:
        populated = self._populated.popleft()
        if tally is None:
            return
        rows, occurrences = batch.unique
        absent = np.flatnonzero(populated.slots == EMPTY)
        in_backward = np.empty(absent.size, np.int32)
        find(rows[absent], populated.sets[absent], self._row, in_backward)
        conflict_lookups = int(occurrences[absent].sum(dtype=np.int64))
        conflict_updates = int(np.count_nonzero(in_backward == EMPTY))
        tally.details.update(
            inserted=populated.inserted,
            evicted=populated.evicted,
            conflict_unique_misses=absent.size,
            conflict_lookups=conflict_lookups,
            conflict_updates=conflict_updates,
            calls=int(rows.size > 0),
            calls_with_misses=int(populated.missed.any()),
        )
        self.count(batch, populated.missed, tally)
        tally.rows_fetched += populated.inserted + conflict_lookups + conflict_updates
        tally.rows_written_back += populated.evicted + conflict_updates


def _network() -> list[tuple[int, int]]:
    """The pairs that are compared, one after the other; those of a stage have no lane in common."""
    pairs = []
    for run in (1, 2, 4, 8, 16):
        pairs += [(lane, lane ^ (2 * run - 1)) for lane in range(WAYS) if not lane & run]
        for distance in (8, 4, 2, 1):
            if distance < run:
                pairs += [(lane, lane ^ distance) for lane in range(WAYS) if not lane & distance]
    return pairs


_PAIRS = np.array(_network(), np.uint8)


@compiled
def warp_sort(keys, lanes):
    """Sort 32 keys of at most 58 bits ascending, and with them the lanes that they came from, as the warp would."""
    for lane in range(WAYS):
        keys[lane] = keys[lane] << _LANE_BITS | lane  # one number to move, of which the lane does not count
    for i in range(_PAIRS.shape[0]):
        low, high = _PAIRS[i, 0], _PAIRS[i, 1]
        here, there = keys[low], keys[high]
        swaps = here >> _LANE_BITS > there >> _LANE_BITS
        keys[low] = there if swaps else here
        keys[high] = here if swaps else there
    for lane in range(WAYS):
        lanes[lane] = keys[lane] & (WAYS - 1)
        keys[lane] >>= _LANE_BITS


def sets_of(rows: Int32s, sets: int) -> Int32s:
    """The sets of rows: the last steps of MurmurHash3 (64 bits), modulo the number of sets."""
    h = rows.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h ^= h >> np.uint64(33)
        h *= np.uint64(factor)
    h ^= h >> np.uint64(33)
    return (h % np.uint64(sets)).astype(np.int32)


@compiled
def _ask_for_set(of_slots, chosen):
    """For all ways of a set, 4 or 8 B each: they begin anywhere in a cache line."""
    first, last = chosen * WAYS, chosen * WAYS + WAYS - 1
    prefetch(of_slots, first)
    prefetch(of_slots, first + WAYS // 2)
    prefetch(of_slots, last)


@compiled
def find(rows, sets, row_of_slot, slots):
    """The slot of every row, or `EMPTY`."""
    for u in range(rows.size):
        if u + _FAR < rows.size:
            _ask_for_set(row_of_slot, sets[u + _FAR])
        first = sets[u] * WAYS
        wanted = rows[u]
        found = np.int32(0)
        for way in range(WAYS):  # a row is in one way at most, and a sum needs no branch
            found += np.int32(way + 1) * np.int32(row_of_slot[np.uint64(first + way)] == wanted)
        slots[u] = first + found - 1 if found else EMPTY


@compiled
def place(rows, counts, sets, row_of_slot, key_of_slot, count, kept_from, keys, order):
    """Bring in what finds a place. Returns rows that entered and rows that left.

    The rows are absent ones, set by set, in each set as they come first, with their counts; with LRU these do not
    matter. With LFU the key of a way is the count of its row, and `count` has those of rows in none. With LRU it is the
    time of its last use, `count` is empty, and ways used from `kept_from` on are not given away. `keys`, int64, and
    `order`, int32, are room for the ways of a set.
    """
    inserted = evicted = begin = 0
    while begin < rows.size:
        if begin + _FAR < rows.size:
            _ask_for_set(key_of_slot, sets[begin + _FAR])
            _ask_for_set(row_of_slot, sets[begin + _FAR])
        first = sets[begin] * WAYS
        for way in range(WAYS):
            keys[way] = key_of_slot[first + way]
        warp_sort(keys, order)
        turn, open_to_more = 0, True
        while begin < rows.size and sets[begin] * WAYS == first:
            open_to_more &= turn < WAYS and keys[turn] < (counts[begin] + 1 if count.size else kept_from)
            if open_to_more:
                slot = first + order[turn]
                if row_of_slot[slot] != EMPTY:
                    evicted += 1
                    if count.size:
                        count[row_of_slot[slot]] = keys[turn]
                row_of_slot[slot] = rows[begin]
                key_of_slot[slot] = counts[begin]
                inserted += 1
                turn += 1
            begin += 1
    return inserted, evicted


class UncachedModel(CacheModel):
    """fbgemm's unified virtual memory: forward reads a row per occurrence, backward reads and writes it once.

    The same rules as `systems.unique_counter.UniqueCounter.uncached_uvm`: row-wise state sits on the device, other
    state moves with its row in backward. No memory per row; the simulator's own list of distinct rows takes 4 B.
    """

    bypasses = True
    state_by_batch = True

    @property
    def slots(self) -> int:
        return 0

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if tally is None:
            return
        rows, _ = batch.unique
        tally.count(batch, np.ones(rows.size, np.bool_))
        lookups = batch.ids.values.size
        tally.lookup_misses += lookups
        tally.rows_fetched += lookups + rows.size
        tally.rows_written_back += rows.size
