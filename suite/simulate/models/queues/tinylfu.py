"""W-TinyLFU by the batch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import Setting
from suite.simulate.models.queues.queued import ABSENT, IN_HAND, NONE, USED, Listed, QueuedRows, append, let_go, remove
from systems.freq_cache.compiled import compiled, prefetch_ahead

_WINDOW, _PROBATION, _PROTECTED = range(3)
"""The lists, each from the row used longest ago to the one used last."""


_MOST = 15
_ACCESSES_PER_SLOT = 10
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
"""Odd, one for each row of counters: the highest bits of its product with a row number say which counter is meant."""


class Sketch(NamedTuple):
    """How often a row was accessed lately, about: a count-min sketch of four rows of counters that end at 15.

    An access adds to the lowest of a row's counters only. After ten accesses per slot all counters are halved, so that
    what was popular once is forgotten. Section 3 of the paper.

    Attributes:
        counters: uint8 `[4 << bits]`.
        factors: uint64 `[4]`.
        added: Accesses since the counters were halved, and half of those before, int64 `[1]`.
        bits: Of the number of a counter in its row.
        sample: Accesses from one halving to the next.
    """

    counters: NDArray[np.uint8]
    factors: NDArray[np.uint64]
    added: NDArray[np.int64]
    bits: int
    sample: int


def empty_sketch(slots: int) -> Sketch:
    """For a cache of so many slots. Memory: 4 to 8 B per slot, at least 64 B."""
    bits = max(4, (slots - 1).bit_length())
    counters = np.zeros(4 << bits, np.uint8)
    return Sketch(counters, np.array(_FACTORS, np.uint64), np.zeros(1, np.int64), bits, _ACCESSES_PER_SLOT * slots)


@compiled
def _at(sketch, which, row):
    product = np.uint64(row + 1) * sketch.factors[which]
    return (which << sketch.bits) + np.int64(product >> np.uint64(64 - sketch.bits))


@compiled
def estimate(sketch, row):
    """About how often a row was accessed: never too low by more than halving and the counters' end make it."""
    least = np.int64(_MOST)
    for which in range(4):
        least = min(least, np.int64(sketch.counters[_at(sketch, which, row)]))
    return least


@compiled
def count(sketch, row):
    """Count an access."""
    least = estimate(sketch, row)
    if least < _MOST:
        for which in range(4):
            at = _at(sketch, which, row)
            if sketch.counters[at] == least:
                sketch.counters[at] += 1
    sketch.added[0] += 1
    if sketch.added[0] >= sketch.sample:
        sketch.added[0] >>= 1
        for at in range(sketch.counters.size):
            sketch.counters[at] >>= 1


class TinyLfuModel(QueuedRows):
    """W-TinyLFU: a row that leaves a small window enters the main cache only if it is used more than what it displaces.

    The window has a hundredth of the slots and is an LRU list that newcomers enter. The main cache is a segmented LRU:
    rows that leave the window enter its probation, a hit there moves them to the protected part of four fifths, whose
    oldest row goes back to probation when it is too many. In a full cache the oldest row of the window and the oldest
    of probation (of the protected part, if there is none) are compared by a sketch that counts all accesses, cached or
    not, and halves its counts once in ten accesses per slot: the candidate from the window stays if its count is the
    higher one, otherwise it leaves. A batch that brings more newcomers than the window's share widens it, for all its
    rows must be resident; where the window has only such rows, the victim of the main cache leaves without a contest.

    Memory: 4 B per row, 13 B per slot, and for the sketch 4 to 8 B per slot.
    """

    source = "Einziger, Friedman and Manes, ACM Transactions on Storage 13(4), 2017, arXiv 1512.00727"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._enter = _enter
        window = max(1, self.slots // 100)
        self._cache = _Segments(
            self._listed(lists=3),
            sketch=empty_sketch(self.slots),
            segment=np.zeros(self.slots, np.int8),
            window=window,
            protected=(self.slots - window) * 4 // 5,
        )


class _Segments(NamedTuple):
    """The cache, the list of every slot, and the most rows that the window and the protected part should have."""

    cached: Listed
    sketch: Sketch
    segment: NDArray[np.int8]
    window: int
    protected: int


@compiled
def _enter(all_rows, ends, all_missed, first, cache):
    state, place, row, flags, lists = cache.cached
    begin = 0
    for end in ends:
        rows, missed = all_rows[begin:end], all_missed[begin:end]
        for i in range(rows.size):
            prefetch_ahead(place, rows, i)
            count(cache.sketch, rows[i])
            slot = place[np.uint64(rows[i])]
            missed[i] = slot < 0
            if slot >= 0:
                flags[slot] = IN_HAND
                _move(cache, slot, _WINDOW if cache.segment[slot] == _WINDOW else _PROTECTED)
                if lists.size[_PROTECTED] > cache.protected:
                    _move(cache, lists.oldest[_PROTECTED], _PROBATION)
        for which in range(3):
            lists.turn[which] = lists.oldest[which]
        for i in range(rows.size):
            if not missed[i]:
                continue
            free = state[USED] < row.size
            if free:
                slot = state[USED]
                state[USED] += 1
            elif rows.size <= row.size:
                slot = _leaves(cache)
                place[np.uint64(row[slot])] = ABSENT
            else:
                continue
            place[np.uint64(rows[i])] = slot
            row[slot] = rows[i]
            flags[slot] = IN_HAND
            cache.segment[slot] = _WINDOW
            append(lists, _WINDOW, slot)
            if free and lists.size[_WINDOW] > cache.window:
                _move(cache, lists.oldest[_WINDOW], _PROBATION)
        let_go(rows, place, flags)
        begin = end


@compiled
def _move(cache, slot, which):
    """Make a slot the newest of a list."""
    lists = cache.cached.lists
    remove(lists, np.int64(cache.segment[slot]), slot)
    cache.segment[slot] = which
    append(lists, which, slot)


@compiled
def _leaves(cache):
    """Send a row away. Returns its slot, which is in no list."""
    row, lists = cache.cached.row, cache.cached.lists
    victim = _next(cache, _PROBATION)
    if victim == NONE:
        victim = _next(cache, _PROTECTED)
    if victim == NONE or lists.size[_WINDOW] >= cache.window:
        candidate = _next(cache, _WINDOW)
        if victim == NONE:
            victim = candidate
        elif candidate != NONE and estimate(cache.sketch, row[candidate]) > estimate(cache.sketch, row[victim]):
            _move(cache, candidate, _PROBATION)
        elif candidate != NONE:
            victim = candidate
    remove(lists, np.int64(cache.segment[victim]), victim)
    return victim


@compiled
def _next(cache, which):
    """The oldest slot of a list that the batch in hand does not have, or NONE."""
    lists, flags = cache.cached.lists, cache.cached.flags
    while lists.turn[which] != NONE and flags[lists.turn[which]] & IN_HAND:
        lists.turn[which] = lists.newer[lists.turn[which]]
    return lists.turn[which]
