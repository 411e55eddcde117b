"""Samples of rows chosen by their hash."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.curves.stack import BLOCK, ONE, WORDS, Words, set_bits, stack_of
from suite.simulate.traces.trace import Int32s, Int64s
from systems.freq_cache.compiled import compiled
from systems.freq_cache.planner.planner import Ids

GROUPS = 8
"""Groups that a sample of rows is divided into."""

_HASH_BITS = 24
_ALL = 1 << _HASH_BITS
_GROUP_MASK, _HASH_SHIFT = np.uint64(GROUPS - 1), np.uint64(64 - _HASH_BITS)
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


class RowSample:
    """Rows chosen by their hash, so that a row is in the sample always or never.

    Spatially hashed sampling as in Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS",
    FAST 2015. The rows of the sample are numbered through, stratum after stratum: a stratum is one of `GROUPS` groups,
    by other bits of the hash, of all rows or of one table.

    Memory: 1/8 B per row of the tables, 4 B per row of the sample.

    Args:
        sizes: Rows of each table, int64 `[tables]`.
        shares: Share of each table's rows to choose, float64 `[tables]`.
        by_table: Strata are groups of one table.
    """

    def __init__(self, sizes: Int64s, shares: NDArray[np.float64], *, by_table: bool) -> None:
        self._table_ends = sizes.cumsum()
        self._limits = np.rint(shares * _ALL).astype(np.int64)
        blocks = -(-int(sizes.sum()) // BLOCK)
        bits = np.zeros(blocks * WORDS, np.uint64)
        in_block = np.zeros(blocks, np.int64)
        _choose(self._table_ends, self._limits, bits, in_block)
        strata = np.empty(int(in_block.sum()), np.int16)
        _list_strata(self._table_ends, bits, by_table, strata)
        self.sizes: Int64s = np.bincount(strata, minlength=GROUPS * (sizes.size if by_table else 1)).astype(np.int64)
        numbers = np.empty(strata.size, np.int32)
        numbers[np.argsort(strata, kind="stable")] = np.arange(strata.size, dtype=np.int32)
        self._chosen = _Chosen(bits, in_block.cumsum() - in_block, numbers)

    def of(self, ids: Ids) -> Int64s:
        """Numbers of those ids of a batch that are in the sample, int64 `[n]`, in their order."""
        limits = self._limits[np.searchsorted(self._table_ends, ids.starts, side="right")]
        found = np.empty(ids.values.size, np.int64)
        return found[: _select((ids.values, ids.ends, ids.starts), limits, self._chosen, found)]


class _Chosen(NamedTuple):
    """The rows of a sample.

    Attributes:
        bits: Whether each row is chosen, a bit for each, uint64.
        before: Rows chosen before each block of bits, int64.
        numbers: Of the chosen rows in their order, int32.
    """

    bits: Words
    before: Int64s
    numbers: Int32s


@compiled
def _hashed(row: int) -> np.uint64:
    """The mixing steps of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = (np.uint64(row) + ONE) * _GOLDEN
    mixed = (mixed ^ (mixed >> _SHIFT_1)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT_2)) * _MIX_2
    return mixed ^ (mixed >> _SHIFT_3)


@compiled
def _choose(ends: Int64s, limits: Int64s, bits: Words, in_block: Int64s) -> None:
    row = 0
    for table in range(ends.size):
        while row < ends[table]:
            if np.int64(_hashed(row) >> _HASH_SHIFT) < limits[table]:
                bits[row >> 6] |= ONE << np.uint64(row & 63)
                in_block[row // BLOCK] += 1
            row += 1


@compiled
def _list_strata(ends: Int64s, bits: Words, by_table: bool, strata: NDArray[np.int16]) -> None:
    found, table = 0, 0
    for row in range(ends[-1]):
        if bits[row >> 6] >> np.uint64(row & 63) & ONE:
            table = stack_of(row, ends, table)
            group = np.int64(_hashed(row) & _GROUP_MASK)
            strata[found] = group + GROUPS * table if by_table else group
            found += 1


@compiled
def _select(batch: tuple[Int64s, Int64s, Int64s], limits: Int64s, chosen: _Chosen, found: Int64s) -> int:
    values, ends, starts = batch
    n, begin = 0, 0
    for feature in range(ends.size):
        for i in range(begin, ends[feature]):
            row = starts[feature] + values[i]
            if np.int64(_hashed(row) >> _HASH_SHIFT) < limits[feature]:
                word, block = row >> 6, row // BLOCK
                place = chosen.before[block] + set_bits(chosen.bits[word] & ((ONE << np.uint64(row & 63)) - ONE))
                for other in range(block * WORDS, word):
                    place += set_bits(chosen.bits[other])
                found[n] = chosen.numbers[place]
                n += 1
        begin = ends[feature]
    return n
