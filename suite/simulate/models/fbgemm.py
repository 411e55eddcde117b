"""fbgemm's device cache in front of UVM: 32 ways, sets by hash, rows that find no place stay behind the link."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, CannotReplay, RowBytes, Setting, Tally
from suite.simulate.models.warp_sort import LANES, warp_sort
from suite.simulate.traces.trace import Int32s, Seen
from systems.freq_cache.compiled import compiled, prefetch

WAYS = LANES
"""Associativity on NVIDIA devices: a lane of a warp looks after each."""

EMPTY = -1

_MOST_LFU_SETS = 2**24 - 2
"""With LFU fbgemm sorts by set and count in one number of 64 bits, of which the set has 24."""

_INT32_MAX = 2**31 - 1

_FAR = 16
"""How many rows ahead a loop asks for memory."""


@dataclass(frozen=True)
class _Populated:
    """A batch whose rows have been placed, and which waits for its lookup.

    Attributes:
        sets: The set of each of its distinct rows, int32 `[u]`.
        missed: Whether each was absent when the batch arrived, bool `[u]`.
        slots: Their slots once all rows were placed, int32 `[u]`; `EMPTY`: in none.
        inserted: Rows brought in.
        evicted: Rows that left for them.
    """

    sets: Int32s
    missed: NDArray[np.bool_]
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

    Memory: 8 B per slot; with LFU also 4 B per row, its count, and where more than 2^31 ids are replayed, 4 B more for
    either; 4 B per set.
    """

    variants = {"policy": ("lru", "lfu"), "prefetch": ("off", "on")}
    bypasses = True
    source = (
        "fbgemm v1.8.0: fbgemm_gpu/src/split_embeddings_cache/{lru,lfu}_cache_{find,populate}.cu, lxu_cache.cu, "
        "common.cuh; split_table_batched_embeddings_ops_training.py"
    )

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
        self._stamp = np.zeros(0 if self._lfu else slots, np.int32)
        most = setting.span.stop * setting.trace.batch_lookups
        count_type = np.int32 if most <= _INT32_MAX else np.int64
        self._count_of_slot = np.full(slots if self._lfu else 0, EMPTY, count_type)
        self._count = np.zeros(setting.trace.rows if self._lfu else 0, count_type)
        self._newest = np.full(self._sets, EMPTY, np.int32)
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
        sets, slots = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
        _hash(rows, self._sets, sets)
        _find(rows, sets, self._row, slots)
        missed = slots == EMPTY
        held = slots[~missed]
        chain, touched = np.empty(rows.size, np.int32), np.empty(np.count_nonzero(missed), np.int32)
        crowded = _chain_by_set(sets, missed, self._newest, chain, touched)
        groups = (touched[:crowded], self._newest, chain)
        ways = (np.empty(WAYS, np.int64), np.empty(WAYS, np.int32), np.empty(WAYS, np.int32))
        if self._lfu:
            counts = np.empty(rows.size, np.int64)
            _count_occurrences(rows, occurrences, slots, self._count, self._count_of_slot, counts)
            inserted, evicted = _place_lfu(rows, counts, groups, self._row, self._count_of_slot, self._count, ways)
        else:
            self._stamp[held] = self._time
            counts = np.zeros(rows.size, np.int64)
            kept_from = self._time - self.look_ahead
            inserted, evicted = _place_lru(rows, counts, groups, self._row, self._stamp, self._time, kept_from, ways)
        _find(rows, sets, self._row, slots)
        self._populated.append(_Populated(sets, missed, slots, inserted, evicted))

    def step(self, batch: Seen, tally: Tally | None) -> None:
        populated = self._populated.popleft()
        if tally is not None:
            self._account(batch, populated, tally)

    def _account(self, batch: Seen, populated: _Populated, tally: Tally) -> None:
        rows, occurrences = batch.unique
        absent = np.flatnonzero(populated.slots == EMPTY)
        in_backward = np.empty(absent.size, np.int32)
        _find(rows[absent], populated.sets[absent], self._row, in_backward)
        counted = {
            "inserted": populated.inserted,
            "evicted": populated.evicted,
            "conflict_unique_misses": absent.size,
            "conflict_lookups": int(occurrences[absent].sum(dtype=np.int64)),
            "conflict_updates": int(np.count_nonzero(in_backward == EMPTY)),
            "calls": int(rows.size > 0),
            "calls_with_misses": int(populated.missed.any()),
        }
        for name, value in counted.items():
            tally.details[name] = tally.details.get(name, 0) + value
        tally.count(batch, rows, populated.missed, self.setting.trace.table_starts)
        assert tally.lookup_misses is not None
        tally.lookup_misses += int(occurrences[populated.missed].sum(dtype=np.int64))
        tally.rows_fetched += counted["inserted"] + counted["conflict_lookups"] + counted["conflict_updates"]
        tally.rows_written_back += counted["evicted"] + counted["conflict_updates"]
        tally.overflow_batches += rows.size > self.slots

    def bytes_moved(self, tally: Tally, row: RowBytes) -> tuple[int, int]:
        """State has no cache: one number per row stays on the device, more is read and written once by backward."""
        state = 0 if row.rowwise else row.state * tally.unique_ids
        return tally.rows_fetched * row.weights + state, tally.rows_written_back * row.weights + state


def uvm_cache_stats(tally: Tally) -> dict[str, int]:
    """What fbgemm's `get_uvm_cache_stats` says after these batches, in its order; with LFU it fills the last only.

    Source: fbgemm v1.8.0, `UVMCacheStatsIndex` in split_table_batched_embeddings_ops_training.py and the kernels.
    """
    return {
        "num_calls": tally.details["calls"],
        "num_requested_indices": tally.lookups,
        "num_unique_indices": tally.unique_ids,
        "num_unique_misses": tally.unique_misses,
        "num_conflict_unique_misses": tally.details["conflict_unique_misses"],
        "num_conflict_misses": tally.details["conflict_lookups"],
    }


def cache_miss_counter(tally: Tally) -> tuple[int, int]:
    """What fbgemm's `get_cache_miss_counter` says: lookups with any absent row, and absent distinct rows."""
    return tally.details["calls_with_misses"], tally.unique_misses


@compiled
def set_of(row, sets):
    """The set of a row: the last steps of MurmurHash3 (64 bits), modulo the sets."""
    h = np.uint64(row)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h % np.uint64(sets)


@compiled
def _hash(rows, sets, out):
    for u in range(rows.size):
        out[u] = set_of(rows[u], sets)


@compiled
def _ask_for_set(of_slots, chosen):
    """For all ways of a set, 4 or 8 B each: they begin anywhere in a cache line."""
    first, last = chosen * WAYS, chosen * WAYS + WAYS - 1
    prefetch(of_slots, first)
    prefetch(of_slots, first + WAYS // 2)
    prefetch(of_slots, last)


@compiled
def _find(rows, sets, row_of_slot, slots):
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
def _chain_by_set(sets, missed, newest, chain, touched):
    """Link the absent rows of each set: `newest` has the last one met, `chain` the one before. Returns the sets met."""
    met = 0
    for u in range(sets.size):
        if missed[u]:
            if newest[sets[u]] == EMPTY:
                touched[met] = sets[u]
                met += 1
            chain[u] = newest[sets[u]]
            newest[sets[u]] = u
    return met


@compiled
def _count_occurrences(rows, occurrences, slots, count, count_of_slot, counts):
    """Add to the count of every row; while a row is cached, its count is kept with its slot."""
    for u in range(rows.size):
        if u + _FAR < rows.size:
            ahead = slots[u + _FAR]
            if ahead == EMPTY:
                prefetch(count, rows[u + _FAR])
            else:
                prefetch(count_of_slot, ahead)
        if slots[u] == EMPTY:
            count[rows[u]] += occurrences[u]
            counts[u] = count[rows[u]]
        else:
            count_of_slot[slots[u]] += occurrences[u]


@compiled
def _first_of(u, chain, rows, counts, chosen):
    """The rows of a set that come first, at most 32: the highest count, of equals the lowest number. Returns all."""
    met = 0
    while u != EMPTY:
        at = min(met, WAYS)
        met += 1
        while at > 0 and _comes_before(u, chosen[at - 1], rows, counts):
            if at < WAYS:
                chosen[at] = chosen[at - 1]
            at -= 1
        if at < WAYS:
            chosen[at] = u
        u = chain[u]
    return met


@compiled
def _comes_before(u, other, rows, counts):
    return counts[u] > counts[other] or (counts[u] == counts[other] and rows[u] < rows[other])


@compiled
def _place_lru(rows, counts, groups, row_of_slot, stamp, time, kept_from, ways):
    """Bring in what finds a place. Returns rows that entered and rows that left."""
    touched, newest, chain = groups
    keys, order, chosen = ways
    inserted = 0
    evicted = 0
    for i in range(touched.size):
        if i + _FAR < touched.size:
            _ask_for_set(stamp, touched[i + _FAR])
            _ask_for_set(row_of_slot, touched[i + _FAR])
        chosen_set = touched[i]
        first = chosen_set * WAYS
        wanted = _first_of(newest[chosen_set], chain, rows, counts, chosen)
        newest[chosen_set] = EMPTY
        for way in range(WAYS):
            keys[way] = stamp[first + way]
        warp_sort(keys, order)
        for turn in range(min(wanted, WAYS)):
            if keys[turn] >= kept_from:
                break
            slot = first + order[turn]
            evicted += row_of_slot[slot] != EMPTY
            row_of_slot[slot] = rows[chosen[turn]]
            stamp[slot] = time
            inserted += 1
    return inserted, evicted


@compiled
def _place_lfu(rows, counts, groups, row_of_slot, count_of_slot, count, ways):
    """Bring in what finds a place. Returns rows that entered and rows that left."""
    touched, newest, chain = groups
    keys, order, chosen = ways
    inserted = 0
    evicted = 0
    for i in range(touched.size):
        if i + _FAR < touched.size:
            _ask_for_set(count_of_slot, touched[i + _FAR])
            _ask_for_set(row_of_slot, touched[i + _FAR])
        chosen_set = touched[i]
        first = chosen_set * WAYS
        wanted = _first_of(newest[chosen_set], chain, rows, counts, chosen)
        newest[chosen_set] = EMPTY
        for way in range(WAYS):
            keys[way] = count_of_slot[first + way]
        warp_sort(keys, order)
        for turn in range(min(wanted, WAYS)):
            newcomer = chosen[turn]
            if keys[turn] > counts[newcomer]:
                break
            slot = first + order[turn]
            if row_of_slot[slot] != EMPTY:
                count[row_of_slot[slot]] = keys[turn]
                evicted += 1
            row_of_slot[slot] = rows[newcomer]
            count_of_slot[slot] = counts[newcomer]
            inserted += 1
    return inserted, evicted
