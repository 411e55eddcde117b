"""Rows ranked by how often they are used, exactly: two rows are equal only if their frequencies are."""

from typing import NamedTuple

import numpy as np

from suite.simulate.traces.trace import Int32s, Int64s, Trace, once_per_trace
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
        seen[counts[counts < _COMMON]] = True
    rank_of = seen.cumsum(dtype=np.int32) - 1
    high = np.unique(np.concatenate([counts[counts >= _COMMON] for counts in frequencies]))
    found = np.concatenate([np.flatnonzero(seen), high])
    ranks, rows = np.empty(trace.rows, np.int32), np.zeros(found.size, np.int64)
    for counts, mine in zip(frequencies, np.split(ranks, trace.table_starts[1:]), strict=True):
        mine[:] = rank_of[np.minimum(counts, _COMMON - 1)]
        above = counts >= _COMMON
        mine[above] = found.size - high.size + np.searchsorted(high, counts[above])
        rows += np.bincount(mine, minlength=found.size)
    return Rates(ranks, found, rows)
