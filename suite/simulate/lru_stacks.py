"""LRU stacks of rows that move a batch at a time, and samples of rows to follow.

The stack distance of Mattson, Gecsei, Slutz and Traiger ("Evaluation techniques for storage hierarchies", IBM Systems
Journal 9(2), 1970), with batches in the place of single accesses: the rows of a batch are looked up all together in the
stack that the batch before it left, then they all move to the top, the last to occur first uppermost. An LRU cache of C
slots that holds a whole batch at a time holds the C uppermost rows, so it misses exactly the rows that lie C deep or
deeper, for every C of at least the largest batch.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from pandas.util import hash_array

from suite.simulate.models.model import table_of
from suite.simulate.trace import Int32s, Int64s
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.compiled import compiled, inlined, prefetch

Counts = NDArray[np.signedinteger]
_Words = NDArray[np.uint64]

UNIQUE, LOOKUPS, ON_STACK, LARGEST = range(4)
"""Entries of a stack's totals: distinct rows and ids counted, rows on the stack, distinct rows of the largest batch."""
_BLOCK = 512
_WORDS = _BLOCK // 64
"""Bits are summed by blocks of so many; a block has so many words, one cache line."""
_FEWEST_ROWS = 1 << 12
_FAR = 16
_ONE, _FULL = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


class LruStacks:
    """LRU stacks side by side, each with rows of its own; counts how deep the rows of every batch lie.

    Every row of a batch takes the next slot of its stack, the bit of its former slot is cleared, and its depth is the
    number of bits set above that slot. Blocks of bits have sums, so that a depth takes one cache line of bits. A stack
    whose slots run out numbers its rows anew.

    Memory: 4 B per row, 1/4 B for bits, and for the counts of depths 4 B (8 B where more than 2^31 distinct rows of
    batches may be counted) per row up to the deepest that occurs.

    Args:
        sizes: Rows of each stack, int64 `[stacks]`; rows are numbered through, stack after stack.
        most: Distinct rows of batches that may be counted in all.
    """

    def __init__(self, sizes: Int64s, *, most: int) -> None:
        self.sizes = sizes
        self._starts = sizes.cumsum() - sizes
        # Twice the rows: renumbering, which visits every row, then comes once in so many accesses at most.
        blocks = -(-2 * np.maximum(sizes, _FEWEST_ROWS) // _BLOCK)
        self._block_ends = blocks.cumsum()
        total = int(blocks.sum())
        rows = int(sizes.sum())
        self._last: Counts = np.zeros(rows, np.int32 if total * _BLOCK < (1 << 31) - 1 else np.int64)
        self._bits = np.zeros(total * _WORDS, np.uint64)
        self._live = np.zeros(total, np.int64)
        self._above = np.zeros(total, np.int64)
        self._clocks = (self._block_ends - blocks) * _BLOCK
        self._hits: Counts = np.zeros(rows, np.int32 if most < 1 << 31 else np.int64)  # sums over all depths fit, too
        self.totals = np.zeros((sizes.size, LARGEST + 1), np.int64)
        self._arriving = np.zeros(sizes.size, np.int64)

    def access(self, rows: Int32s, occurrences: Int32s, *, counted: bool) -> None:
        """Look up the rows of a batch, then move them to the top.

        Args:
            rows: Its distinct rows, int32 `[u]`, in order of first occurrence.
            occurrences: How often each occurs, int32 `[u]`.
            counted: Whether it counts.
        """
        self._arriving[:] = 0
        _arrivals(rows, self._starts, self._arriving)
        self.totals[:, LARGEST] = np.maximum(self.totals[:, LARGEST], self._arriving)
        for stack in np.flatnonzero(self._clocks + self._arriving > self._block_ends * _BLOCK):
            self._renumber(int(stack))
        places = np.empty(rows.size, np.int64)
        _sum_blocks(self._clocks, self._block_ends, self._live, self._above)
        _find(rows, self._starts, self._last, self._bits, self._above, places)
        if counted:
            _count(rows, occurrences, places, self._starts, self._hits, self.totals)
        _move(rows, self._starts, self._last, self._bits, self._live, self._clocks, self.totals)

    def depths(self, stack: int) -> Counts:
        """Counted rows of each depth, `[rows that were used]`; not copied."""
        begin = self._starts[stack]
        return self._hits[begin : begin + self.totals[stack, ON_STACK]]

    def _renumber(self, stack: int) -> None:
        blocks = int(self._block_ends[stack - 1]) if stack else 0, int(self._block_ends[stack])
        rows = self._last[self._starts[stack] :][: self.sizes[stack]]
        self._clocks[stack] = _renumber(rows, *blocks, self._bits, self._live, self._above)


@intrinsic  # type: ignore[untyped-decorator]
def _set_bits(_context: Any, word: Any) -> Any:
    """Count the bits of a word that are set: one instruction of the processor."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@compiled
def _arrivals(rows: Int32s, starts: Int64s, arriving: Int64s) -> None:
    stack = 0
    for i in range(rows.size):
        stack = table_of(rows[i], starts, stack)
        arriving[stack] += 1


@compiled
def _sum_blocks(clocks: Int64s, block_ends: Int64s, live: Int64s, above: Int64s) -> None:
    """`above`: bits set in the blocks of the same stack that lie above each block."""
    first = 0
    for stack in range(clocks.size):
        total = 0
        for block in range(min(clocks[stack] // _BLOCK, block_ends[stack] - 1), first - 1, -1):
            above[block] = total
            total += live[block]
        first = block_ends[stack]


@inlined
def _ask_ahead(rows: Int32s, i: int, last: Counts, bits: _Words, of_blocks: Int64s) -> None:
    """Ask for the memory of rows that come a few turns after the `i`-th."""
    if i + 2 * _FAR < rows.size:
        prefetch(last, rows[i + 2 * _FAR])
    if i + _FAR < rows.size:
        slot = np.int64(last[rows[i + _FAR]])
        prefetch(bits, slot >> 6)
        prefetch(of_blocks, slot // _BLOCK)


@compiled
def _find(rows: Int32s, starts: Int64s, last: Counts, bits: _Words, above: Int64s, places: Int64s) -> None:
    """`places`: where the depth of each row is counted, its stack's first row plus the depth; -1: not on the stack."""
    stack = 0
    for i in range(rows.size):
        _ask_ahead(rows, i, last, bits, above)
        slot = np.int64(last[rows[i]]) - 1
        if slot < 0:
            places[i] = -1
            continue
        stack = table_of(rows[i], starts, stack)
        word, block = slot >> 6, slot // _BLOCK
        depth = above[block] + _set_bits((bits[word] >> np.uint64(slot & 63)) >> _ONE)
        for other in range(word + 1, (block + 1) * _WORDS):
            depth += _set_bits(bits[other])
        places[i] = depth + starts[stack]


@compiled
def _count(rows: Int32s, occurrences: Int32s, places: Int64s, starts: Int64s, hits: Counts, totals: Int64s) -> None:
    stack = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(hits, places[i + _FAR])
        stack = table_of(rows[i], starts, stack)
        totals[stack, UNIQUE] += 1
        totals[stack, LOOKUPS] += occurrences[i]
        if places[i] >= 0:
            hits[places[i]] += 1


@compiled
def _move(
    rows: Int32s, starts: Int64s, last: Counts, bits: _Words, live: Int64s, clocks: Int64s, totals: Int64s
) -> None:
    """Rows take the next slots of their stack. `last` is 1 + the slot of a row, 0 where it has none."""
    stack = 0
    for i in range(rows.size):
        _ask_ahead(rows, i, last, bits, live)
        stack = table_of(rows[i], starts, stack)
        slot = np.int64(last[rows[i]]) - 1
        if slot < 0:
            totals[stack, ON_STACK] += 1
        else:
            bits[slot >> 6] ^= _ONE << np.uint64(slot & 63)
            live[slot // _BLOCK] -= 1
        slot = clocks[stack]
        bits[slot >> 6] |= _ONE << np.uint64(slot & 63)
        live[slot // _BLOCK] += 1
        last[rows[i]] = slot + 1
        clocks[stack] = slot + 1


@compiled
def _renumber(last: Counts, first_block: int, last_block: int, bits: _Words, live: Int64s, above: Int64s) -> int:
    """Give the rows of one stack its first slots, in their order. Returns the first slot that is free."""
    slots = np.int64(first_block * _BLOCK)
    for block in range(first_block, last_block):
        above[block] = slots  # here: the new slot of the block's first row
        slots += live[block]
    for row in range(last.size):
        slot = np.int64(last[row]) - 1
        if slot >= 0:
            word, first_word = slot >> 6, slot // _BLOCK * _WORDS
            last[row] = 1 + above[slot // _BLOCK] + _set_bits(bits[word] & ((_ONE << np.uint64(slot & 63)) - _ONE))
            for other in range(first_word, word):
                last[row] += _set_bits(bits[other])
    bits[first_block * _WORDS : slots >> 6] = _FULL
    bits[slots >> 6 : last_block * _WORDS] = 0
    if slots & 63:
        bits[slots >> 6] = (_ONE << np.uint64(slots & 63)) - _ONE
    live[first_block : slots // _BLOCK] = _BLOCK
    live[slots // _BLOCK : last_block] = 0
    if slots % _BLOCK:
        live[slots // _BLOCK] = slots % _BLOCK
    return int(slots)


GROUPS = 8
"""Groups that a sample of rows is divided into."""

_HASH_BITS = 24
_ALL = 1 << _HASH_BITS
_GROUP_MASK, _HASH_SHIFT = np.uint64(GROUPS - 1), np.uint64(64 - _HASH_BITS)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ABSENT = -1
_HASHED_ROWS = 1 << 22
"""Hashed at once."""


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
            for start in range(end - size, end, _HASHED_ROWS):
                block = np.arange(start, min(start + _HASHED_ROWS, end), dtype=np.uint64)
                hashed = hash_array((block + np.uint64(1)) * _GOLDEN)  # splitmix64 (Steele et al., OOPSLA 2014)
                chosen = hashed >> _HASH_SHIFT < limits[table]
                rows.append(block[chosen])
                strata.append((hashed[chosen] & _GROUP_MASK).astype(np.int64) + (GROUPS * table if by_table else 0))
        stratum = np.concatenate(strata)
        self.sizes: Int64s = np.bincount(stratum, minlength=GROUPS * (table_rows.size if by_table else 1))
        self._numbers = np.full(int(ends[-1]), _ABSENT, np.int32)
        self._numbers[np.concatenate(rows)[np.argsort(stratum, kind="stable")]] = np.arange(stratum.size)

    def of(self, ids: Ids) -> Int64s:
        """Numbers of those ids of a batch that are in the sample, int64 `[n]`, in their order."""
        found = self._numbers[ids.values + np.repeat(ids.starts, np.diff(ids.ends, prepend=0))]
        numbers: Int64s = found[found != _ABSENT].astype(np.int64)
        return numbers
