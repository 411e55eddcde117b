"""LRU stacks of rows that move a batch at a time, and the cache that they are.

The stack distance of Mattson, Gecsei, Slutz and Traiger ("Evaluation techniques for storage hierarchies", IBM Systems
Journal 9(2), 1970), with batches in the place of single accesses: the rows of a batch are looked up all together in the
stack that the batch before it left, then they all move to the top, the last to occur first uppermost. An LRU cache of C
slots that holds a whole batch at a time holds the C uppermost rows, so it misses exactly the rows that lie C deep or
deeper, for every C of at least the largest batch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import Int32s, Int64s, Seen
from systems.freq_cache.compiled import compiled, inlined, prefetch

Counts = NDArray[np.signedinteger]
_Words = NDArray[np.uint64]

_BLOCK = 512
_WORDS = _BLOCK // 64
"""Bits are summed by blocks of so many; a block has so many words, one cache line."""
_FEWEST_ROWS = 1 << 12
_FAR = 16
_ONE, _FULL = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


class LruStack:
    """An LRU stack.

    Every row of a batch takes the next slot of the stack, the bit of its former slot is cleared, and its depth is the
    number of bits set above that slot. Blocks of bits have sums, so that a depth takes one cache line of bits. A stack
    whose slots run out numbers its rows anew.

    Memory: 4 B per row, and 1/4 B for bits. `rows` is how many there are, `used` how many lie on the stack.
    """

    def __init__(self, rows: int) -> None:
        self.used = 0
        # Twice the rows: renumbering, which visits every row, then comes once in so many accesses at most.
        blocks = -(-2 * max(rows, _FEWEST_ROWS) // _BLOCK)
        self._last: Counts = np.zeros(rows, np.int32 if blocks * _BLOCK < (1 << 31) - 1 else np.int64)
        self._bits = np.zeros(blocks * _WORDS, np.uint64)
        self._live = np.zeros(blocks, np.int64)  # bits set in each block
        self._clock = 0  # the next slot

    def depths(self, rows: Int32s) -> Int64s:
        """Number of rows above each, int64 `[u]`; -1: it is not on the stack."""
        depths = np.empty(rows.size, np.int64)
        above = self._live[::-1].cumsum()[::-1] - self._live
        _find(rows, self._last, self._bits, above, depths)
        return depths

    def push(self, rows: Int32s) -> None:
        """Move distinct rows to the top, the last one uppermost."""
        if self._clock + rows.size > self._live.size * _BLOCK:
            self._renumber()
        self.used += _move(rows, self._last, self._bits, self._live, self._clock)
        self._clock += rows.size

    def _renumber(self) -> None:
        """Give the rows the first slots, in their order."""
        _shift(self._last, self._bits, self._live.cumsum() - self._live)
        word = self.used >> 6
        self._bits[:word], self._bits[word:] = _FULL, 0
        self._bits[word] = (1 << (self.used & 63)) - 1
        self._live[:] = np.clip(self.used - _BLOCK * np.arange(self._live.size), 0, _BLOCK)
        self._clock = self.used


class LruModel(CacheModel):
    """The row whose last batch is the oldest leaves; of those of one batch, the one that occurred first.

    So the uppermost rows of an LRU stack are cached, as many as there are slots. Memory: that of `LruStack`. LRU is
    defined for single accesses; with batches of one row it misses what another simulator misses
    (`results/simulate/independent_check.py`). Brought to batches by these rules:

    - The distinct rows of a batch are its accesses, in order of first occurrence. A row that occurs several times in a
      batch is accessed once.
    - All rows of a batch must be resident together. None of them leaves to make room for another.
    - Every missing row enters the cache.
    - A batch with more distinct rows than there are slots only fills free slots. No row leaves. Its other rows are read
      and written past the cache, once each, and the batch is counted as an overflow.
    - Every cached row has been trained. So every row that leaves is written back, with its optimizer state.
    """

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._stack = LruStack(setting.trace.rows)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, _ = batch.unique
        depths, used = self._stack.depths(rows), self._used
        missed = (depths < 0) | (depths >= self.slots)
        if rows.size > self.slots:
            rows = rows[~missed | (np.cumsum(missed) <= self.slots - used)]
        self._stack.push(rows)
        if tally is None:
            return
        misses = self.count(batch, missed, tally)
        tally.rows_fetched += misses
        tally.rows_written_back += misses - (self._used - used)  # left, or went past the cache

    @property
    def _used(self) -> int:
        return min(self._stack.used, self.slots)


@intrinsic  # type: ignore[untyped-decorator]
def _set_bits(_context: Any, word: Any) -> Any:
    """Count the bits of a word that are set: one instruction of the processor."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


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
def _find(rows: Int32s, last: Counts, bits: _Words, above: Int64s, depths: Int64s) -> None:
    """`depths`: that of each row; -1: not on the stack. `above`: bits set above each block."""
    for i in range(rows.size):
        _ask_ahead(rows, i, last, bits, above)
        slot = np.int64(last[rows[i]]) - 1
        if slot < 0:
            depths[i] = -1
            continue
        word, block = slot >> 6, slot // _BLOCK
        depth = above[block] + _set_bits((bits[word] >> np.uint64(slot & 63)) >> _ONE)
        for other in range(word + 1, (block + 1) * _WORDS):
            depth += _set_bits(bits[other])
        depths[i] = depth


@compiled
def _move(rows: Int32s, last: Counts, bits: _Words, live: Int64s, clock: int) -> int:
    """Rows take the next slots. `last` is 1 + the slot of a row, 0 where it has none. Returns how many had none."""
    new = 0
    for i in range(rows.size):
        _ask_ahead(rows, i, last, bits, live)
        slot = np.int64(last[rows[i]]) - 1
        if slot < 0:
            new += 1
        else:
            bits[slot >> 6] ^= _ONE << np.uint64(slot & 63)
            live[slot // _BLOCK] -= 1
        slot = np.int64(clock + i)
        bits[slot >> 6] |= _ONE << np.uint64(slot & 63)
        live[slot // _BLOCK] += 1
        last[rows[i]] = slot + 1
    return new


@compiled
def _shift(last: Counts, bits: _Words, firsts: Int64s) -> None:
    """Number the slots of rows through. `firsts`: the new slot of each block's first row."""
    for row in range(last.size):
        slot = np.int64(last[row]) - 1
        if slot >= 0:
            word, first_word = slot >> 6, slot // _BLOCK * _WORDS
            last[row] = 1 + firsts[slot // _BLOCK] + _set_bits(bits[word] & ((_ONE << np.uint64(slot & 63)) - _ONE))
            for other in range(first_word, word):
                last[row] += _set_bits(bits[other])
