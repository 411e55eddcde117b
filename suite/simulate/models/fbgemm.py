"""fbgemm's device cache in front of UVM: 32 ways, sets by hash, rows that find no place stay behind the link."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from suite.simulate.models.fbgemm_sets import (
    EMPTY,
    WAYS,
    Arriving,
    Scratch,
    chain_by_set,
    count_occurrences,
    find,
    hash_rows,
    place,
)
from suite.simulate.models.model import Bools, CacheModel, CannotReplay, Setting, Tally
from suite.simulate.trace import Int32s, Seen

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

    Memory: 8 B per slot and 4 B per set; with LFU 12 B per slot, and 8 B per row for its count.
    """

    variants = {"policy": ("lru", "lfu"), "prefetch": ("off", "on")}
    bypasses = True
    state_by_batch = True
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
        self._key = np.full(slots, EMPTY, np.int64) if self._lfu else np.zeros(slots, np.int32)  # see `place`
        self._count = np.zeros(setting.trace.rows if self._lfu else 0, np.int64)
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
        hash_rows(rows, self._sets, sets)
        find(rows, sets, self._row, slots)
        missed = slots == EMPTY
        chain, touched = np.empty(rows.size, np.int32), np.empty(np.count_nonzero(missed), np.int32)
        crowded = chain_by_set(sets, missed, self._newest, chain, touched)
        arriving = Arriving(rows, np.full(rows.size, self._time, np.int64), touched[:crowded], self._newest, chain)
        scratch = Scratch(np.empty(WAYS, np.int64), np.empty(WAYS, np.int32), np.empty(WAYS, np.int32))
        if self._lfu:
            count_occurrences(rows, occurrences, slots, self._count, self._key, arriving.counts)
        else:
            self._key[slots[~missed]] = self._time
        kept_from = self._time - self.look_ahead
        inserted, evicted = place(arriving, self._row, self._key, self._count, kept_from, scratch)
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
