"""Samples of rows chosen by their hash."""

import numpy as np
from numpy.typing import NDArray

from suite.simulate.traces.trace import Int32s, Int64s
from systems.freq_cache.compiled import compiled
from systems.freq_cache.planner.planner import Ids

GROUPS = 8
"""Groups that a sample of rows is divided into."""

_HASH_BITS = 24
_ALL = 1 << _HASH_BITS
_GROUP_MASK, _HASH_SHIFT = np.uint64(GROUPS - 1), np.uint64(64 - _HASH_BITS)
_ONE = np.uint64(1)
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_NONE = -1


class RowSample:
    """Rows chosen by their hash, so that a row is in the sample always or never.

    Spatially hashed sampling as in Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS",
    FAST 2015. The rows of the sample are numbered through, stratum after stratum: a stratum is one of `GROUPS` groups,
    by other bits of the hash, of all rows or of one table.

    Memory: 4 B per row of the tables.

    Args:
        table_rows: Rows of each table, int64 `[tables]`.
        shares: Share of each table's rows to choose, float64 `[tables]`.
        by_table: Strata are groups of one table.

    Attributes:
        sizes: Rows of each stratum, int64 `[strata]`.
    """

    def __init__(self, table_rows: Int64s, shares: NDArray[np.float64], *, by_table: bool) -> None:
        limits = np.rint(shares * _ALL).astype(np.int64)
        self.sizes: Int64s = np.zeros(GROUPS * (table_rows.size if by_table else 1), np.int64)
        self._numbers = np.empty(int(table_rows.sum()), np.int32)
        _choose(table_rows.cumsum(), limits, by_table, self._numbers, self.sizes)
        _number(self._numbers, self.sizes.cumsum() - self.sizes)

    def of(self, ids: Ids) -> Int64s:
        """Numbers of those ids of a batch that are in the sample, int64 `[n]`, in their order."""
        found = self._numbers[ids.values + np.repeat(ids.starts, np.diff(ids.ends, prepend=0))]
        numbers: Int64s = found[found != _NONE].astype(np.int64)
        return numbers


@compiled
def _hashed(row: int) -> np.uint64:
    """The mixing steps of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = (np.uint64(row) + _ONE) * _GOLDEN
    mixed = (mixed ^ (mixed >> _SHIFT_1)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT_2)) * _MIX_2
    return mixed ^ (mixed >> _SHIFT_3)


@compiled
def _choose(ends: Int64s, limits: Int64s, by_table: bool, strata: Int32s, sizes: Int64s) -> None:
    """Find the stratum of every chosen row, and how many rows each has."""
    row = 0
    for table in range(ends.size):
        while row < ends[table]:
            hashed = _hashed(row)
            strata[row] = _NONE
            if np.int64(hashed >> _HASH_SHIFT) < limits[table]:
                strata[row] = np.int64(hashed & _GROUP_MASK) + (GROUPS * table if by_table else 0)
                sizes[strata[row]] += 1
            row += 1


@compiled
def _number(strata: Int32s, following: Int64s) -> None:
    """Turn strata into numbers; `following` has the next number of each stratum."""
    for row in range(strata.size):
        stratum = strata[row]
        if stratum != _NONE:
            strata[row] = following[stratum]
            following[stratum] += 1
