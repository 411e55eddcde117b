"""Samples of rows chosen by their hash."""

import numpy as np
from numpy.typing import NDArray
from pandas.util import hash_array

from suite.simulate.traces.trace import Int64s
from systems.freq_cache.planner.planner import Ids

GROUPS = 8
"""Groups that a sample of rows is divided into."""

_HASH_BITS = 24
_ALL = 1 << _HASH_BITS
_GROUP_MASK, _HASH_SHIFT = np.uint64(GROUPS - 1), np.uint64(64 - _HASH_BITS)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NONE = -1
_BLOCK = 1 << 22
"""Rows that are hashed at once."""


class RowSample:
    """Rows chosen by their hash, so that a row is in the sample always or never.

    Spatially hashed sampling as in Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS",
    FAST 2015. The rows of the sample are numbered through, stratum after stratum: a stratum is one of `GROUPS` groups,
    by other bits of the hash, of all rows or of one table.

    Memory: 4 B per row of the tables; while it is built also 24 B per row of the sample.

    Args:
        table_rows: Rows of each table, int64 `[tables]`.
        shares: Share of each table's rows to choose, float64 `[tables]`.
        by_table: Strata are groups of one table.

    Attributes:
        sizes: Rows of each stratum, int64 `[strata]`.
    """

    def __init__(self, table_rows: Int64s, shares: NDArray[np.float64], *, by_table: bool) -> None:
        limits = np.rint(shares * _ALL).astype(np.uint64)
        ends = table_rows.cumsum()
        rows, strata = [], []
        for table, (size, end) in enumerate(zip(table_rows.tolist(), ends.tolist(), strict=True)):
            for start in range(end - size, end, _BLOCK):
                block = np.arange(start, min(start + _BLOCK, end), dtype=np.uint64)
                hashed = hash_array((block + np.uint64(1)) * _GOLDEN)  # splitmix64 (Steele et al., OOPSLA 2014)
                chosen = hashed >> _HASH_SHIFT < limits[table]
                rows.append(block[chosen])
                strata.append((hashed[chosen] & _GROUP_MASK).astype(np.int64) + (GROUPS * table if by_table else 0))
        stratum = np.concatenate(strata)
        self.sizes: Int64s = np.bincount(stratum, minlength=GROUPS * (table_rows.size if by_table else 1))
        self._numbers = np.full(int(ends[-1]), _NONE, np.int32)
        self._numbers[np.concatenate(rows)[np.argsort(stratum, kind="stable")]] = np.arange(stratum.size)

    def of(self, ids: Ids) -> Int64s:
        """Numbers of those ids of a batch that are in the sample, int64 `[n]`, in their order."""
        found = self._numbers[ids.values + np.repeat(ids.starts, np.diff(ids.ends, prepend=0))]
        numbers: Int64s = found[found != _NONE].astype(np.int64)
        return numbers
