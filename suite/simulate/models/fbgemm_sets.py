"""The sets of fbgemm's cache: finding rows in them, and placing those that are absent.

The kernels order the 32 ways of a set by a bitonic network over the lanes of a warp, which is not stable. Source:
fbgemm v1.8.0, `fbgemm_gpu/include/fbgemm_gpu/utils/bitonic_sort.cuh`, the same in v1.6.0: sorted runs of 1, 2, 4, 8 and
16 lanes are merged; a merge first compares every lane of a pair of runs with its mirror image, then lanes at halving
distances. Two lanes swap only where the lower one has the greater key, so equal keys stay apart as they are.
"""

from typing import NamedTuple

import numpy as np

from suite.simulate.trace import Int32s, Int64s
from systems.freq_cache.compiled import compiled, prefetch

WAYS = 32
"""Associativity on NVIDIA devices: a lane of a warp looks after each."""

EMPTY = -1

_FAR = 16
"""How many rows ahead a loop asks for memory."""

_LANE_BITS = 5


class Arriving(NamedTuple):
    """The absent rows of a batch, by set.

    Attributes:
        rows: Distinct rows of the batch, int32 `[u]`.
        counts: How often each was used, int64 `[u]`; with LRU the time.
        touched: Sets that absent rows belong to, int32.
        newest: The last absent row of each set, its place in `rows` or `EMPTY`, int32 `[sets]`.
        chain: The absent row of the same set before each row, or `EMPTY`, int32 `[u]`.
    """

    rows: Int32s
    counts: Int64s
    touched: Int32s
    newest: Int32s
    chain: Int32s


class Scratch(NamedTuple):
    """Room to sort the ways of one set: their keys, the lanes these came from, and the rows that come first."""

    keys: Int64s
    order: Int32s
    chosen: Int32s


def _network() -> list[tuple[int, int]]:
    """The pairs that are compared, one after the other; those of a stage have no lane in common."""
    pairs = []
    run = 1
    while run < WAYS:
        pairs += [(lane, lane ^ (2 * run - 1)) for lane in range(WAYS) if not lane & run]
        distance = run // 2
        while distance:
            pairs += [(lane, lane ^ distance) for lane in range(WAYS) if not lane & distance]
            distance //= 2
        run *= 2
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
def hash_rows(rows, sets, out):
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
def chain_by_set(sets, missed, newest, chain, touched):
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
def count_occurrences(rows, occurrences, slots, count, count_of_slot, counts):
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
        while at > 0:
            other = chosen[at - 1]
            if counts[other] > counts[u] or (counts[other] == counts[u] and rows[other] < rows[u]):
                break
            if at < WAYS:
                chosen[at] = other
            at -= 1
        if at < WAYS:
            chosen[at] = u
        u = chain[u]
    return met


@compiled
def place(arriving, row_of_slot, key_of_slot, count, kept_from, scratch):
    """Bring in what finds a place. Returns rows that entered and rows that left.

    With LFU the key of a way is the count of its row, and `count` has those of rows in none. With LRU it is the time of
    its last use, `count` is empty, and ways used from `kept_from` on are not given away.
    """
    rows, counts, touched, newest, chain = arriving
    keys, order, chosen = scratch
    inserted = 0
    evicted = 0
    for i in range(touched.size):
        if i + _FAR < touched.size:
            _ask_for_set(key_of_slot, touched[i + _FAR])
            _ask_for_set(row_of_slot, touched[i + _FAR])
        first = touched[i] * WAYS
        wanted = _first_of(newest[touched[i]], chain, rows, counts, chosen)
        newest[touched[i]] = EMPTY
        for way in range(WAYS):
            keys[way] = key_of_slot[first + way]
        warp_sort(keys, order)
        for turn in range(min(wanted, WAYS)):
            newcomer = chosen[turn]
            if keys[turn] >= (counts[newcomer] + 1 if count.size else kept_from):
                break
            slot = first + order[turn]
            if row_of_slot[slot] != EMPTY:
                evicted += 1
                if count.size:
                    count[row_of_slot[slot]] = keys[turn]
            row_of_slot[slot] = rows[newcomer]
            key_of_slot[slot] = counts[newcomer]
            inserted += 1
    return inserted, evicted
