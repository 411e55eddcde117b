"""Rows ranked by how often they are used, exactly: two rows are equal only if their frequencies are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suite.simulate.traces.trace import Int32s, Int64s, Trace, once_per_trace
from systems.freq_cache.compiled import compiled
from systems.freq_cache.planner.policy import level_of

_COMMON = 1 << 20
"""Frequencies below have a place in a table; the few rows above are searched for."""


class Rates(NamedTuple):
    """Ranks of rows.

    Attributes:
        of: Rank of each row, 0 for the rarest, int32 `[rows]`.
        frequencies: Of each rank, rising, int64 `[ranks]`: there are no more ranks than the square root of twice the
            accesses, for each frequency differs.
        rows: Rows of each rank, int64 `[ranks]`.
    """

    of: Int32s
    frequencies: Int64s
    rows: Int64s

    def bar(self, slots: int) -> tuple[int, int]:
        """The highest rank of which not all rows are among the `slots` most frequent, -1 for none, and how many are."""
        above = np.cumsum(self.rows[::-1])
        whole = int(np.searchsorted(above, slots, side="right"))
        left = slots - (int(above[whole - 1]) if whole else 0)
        return self.rows.size - 1 - whole, left

    def lowest_frequent(self, slots: int) -> int:
        """The lowest rank of rows that a cache may hold which starts with `slots` of the most frequent rows.

        Frequencies of one `level_of` are equal, as they are for `StaticFrequency`, and of equals it may hold any.
        """
        bar, left = self.bar(slots)
        rank = bar if left and bar >= 0 else bar + 1
        while 0 < rank < self.rows.size and self._level(rank - 1) == self._level(rank):
            rank -= 1
        return rank

    def _level(self, rank: int) -> int:
        return int(level_of(min(int(self.frequencies[rank]), 2**31)))


@once_per_trace
def rates_of(trace: Trace) -> Rates:
    """Ranks of the rows of a trace by `Trace.frequencies`. Memory: 4 B per row."""
    frequencies = trace.frequencies()
    seen = np.zeros(_COMMON, np.bool_)
    for counts in frequencies:
        _mark(counts, seen)
    common = seen.cumsum(dtype=np.int32) - 1
    distinct = int(common[-1]) + 1
    above = [counts[counts >= _COMMON] for counts in frequencies]
    high = np.unique(np.concatenate(above))
    ranks = np.empty(sum(counts.size for counts in frequencies), np.int32)
    done = 0
    for counts, high_counts in zip(frequencies, above, strict=True):
        mine = ranks[done : done + counts.size]
        _look_up(counts, common, mine)
        mine[counts >= _COMMON] = distinct + np.searchsorted(high, high_counts)
        done += counts.size
    rows = np.zeros(distinct + high.size, np.int64)
    _count(ranks, rows)
    return Rates(ranks, np.concatenate([np.flatnonzero(seen), high]), rows)


@compiled
def _mark(counts, seen):
    for count in counts:
        if count < seen.size:
            seen[count] = True


@compiled
def _look_up(counts, common, ranks):
    for row in range(counts.size):
        if counts[row] < common.size:
            ranks[row] = common[counts[row]]


@compiled
def _count(ranks, rows):
    for rank in ranks:
        rows[rank] += 1
