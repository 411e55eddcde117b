"""Compiled loops of `describe`: one access at a time, in the order of the stream."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workloads.compiled import compiled

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.signedinteger]
Words = npt.NDArray[np.uint64]

WORD_BITS = 64
EXACT_BITS = 8
"""Distances of up to this many bits have a bin each; longer ones share a bin if their first bits, this many, agree."""
CLOCK, LIVE, FIRST = range(3)
"""Entries of a stack's state: the next slot, rows on the stack, rows met for the first time."""

_ONE, _TWO, _FOUR, _TOP_BYTE = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_PAIRS, _QUADS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_NIBBLES, _BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Windows(NamedTuple):
    """Aligned windows of 1, 2, 4, ... batches, for `mark_windows`.

    Attributes:
        batch_size: Samples per batch.
        full: Full windows by length, int64 `[lengths]`; what comes behind them is not counted.
        starts: Where the windows of each length begin in `distinct`, int64 `[lengths]`.
        distinct: Gets distinct rows by window, int64 `[windows of all lengths]`.
        accesses: Gets accesses by batch, int64 `[batches]`.
    """

    batch_size: int
    full: Ints
    starts: Ints
    distinct: Ints
    accesses: Ints


@compiled
def interleave(values: Ints, offsets: Ints, starts: Ints, samples: int, rows: Ints) -> None:
    """Write rows over all tables sample by sample, from ids that are ordered by table, then sample.

    Args:
        values: Ids within their table, int64 `[accesses]`.
        offsets: Where the ids of a table and sample begin, int64 `[tables * samples + 1]`.
        starts: First row of each table, int64 `[tables]`.
        samples: Samples in the block.
        rows: Receives the rows, int64 `[accesses]`.
    """
    n = 0
    for sample in range(samples):
        for table in range(len(starts)):
            bag = table * samples + sample
            for position in range(offsets[bag], offsets[bag + 1]):
                rows[n] = starts[table] + values[position]
                n += 1


@compiled
def mark_windows(  # noqa: PLR0917 - compiled loops take arguments by position
    ids: Ints, offsets: Ints, first_sample: int, windows: Windows, last_batch: npt.NDArray[np.int32], totals: Ints
) -> None:
    """Count the rows of one table that are new in a window.

    A row is new in a window when its previous batch lies in an earlier one. The windows are nested: where a row is not
    new in one, it is not new in any longer one.

    Args:
        ids: Ids of a table by sample, int64 `[accesses]`.
        offsets: Where the ids of a sample begin, int64 `[samples + 1]`.
        first_sample: Position of the first sample in the stream.
        windows: The windows; counts are added to those of other tables.
        last_batch: Batch of each row's latest access, -1 for none, int32 `[rows]`.
        totals: Receives the table's sums over the batches, int64 `[2]`: distinct rows, accesses.
    """
    full, starts = windows.full, windows.starts
    for sample in range(len(offsets) - 1):
        batch = (first_sample + sample) // windows.batch_size
        if batch >= full[0]:
            return
        windows.accesses[batch] += offsets[sample + 1] - offsets[sample]
        totals[1] += offsets[sample + 1] - offsets[sample]
        for position in range(offsets[sample], offsets[sample + 1]):
            previous = last_batch[ids[position]]
            last_batch[ids[position]] = batch
            totals[0] += previous != batch
            for length in range(len(full)):
                window = batch >> length
                if previous >> length == window:
                    break
                if window < full[length]:
                    windows.distinct[starts[length] + window] += 1


@compiled
def _set_bits(word: np.uint64) -> int:
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _QUADS) + ((word >> _TWO) & _QUADS)
    word = (word + (word >> _FOUR)) & _NIBBLES
    return np.int64((word * _BYTES) >> _TOP_BYTE)  # type: ignore[return-value] # numba has no Python integers


@compiled
def distance_bin(distance: int) -> int:
    """Bin of a distance of 0 or more; `reuse.bin_lows` is the inverse."""
    shift = max(0, math.frexp(float(distance))[1] - EXACT_BITS)  # frexp's exponent is the length in bits
    return (shift << (EXACT_BITS - 1)) + (distance >> shift)


@compiled
def push(  # noqa: PLR0917 - compiled loops take arguments by position
    rows: Ints, start: int, last: Slots, bits: Words, tree: Ints, state: Ints, histogram: Ints
) -> int:
    """Move accessed rows to the top of an LRU stack and count how deep they were, until the slots run out.

    Every access takes the next slot and sets its bit; the bit of the row's former slot is cleared. The depth of a row
    is the number of bits set above its slot. A Fenwick tree sums bits over the words that are complete.

    Args:
        rows: Accessed rows in order, int64 `[n]`.
        start: Where to begin in `rows`.
        last: Slot of each row, -1 where it has none.
        bits: Slots that are some row's latest, uint64 words.
        tree: Fenwick tree over the bits of the words, int64 `[words + 1]`; entry 0 is not used.
        state: `CLOCK`, `LIVE` and `FIRST`.
        histogram: Receives reuses by `distance_bin`.

    Returns:
        Where it stopped: the end of `rows`, or the first row for which there is no slot.
    """
    words = len(bits)
    clock, live = state[CLOCK], state[LIVE]
    n = start
    while n < len(rows) and clock < words * WORD_BITS:
        slot = np.int64(last[rows[n]])
        if slot < 0:
            live += 1
            state[FIRST] += 1
        else:
            word = slot >> 6
            bit = np.uint64(slot & 63)
            distance = _set_bits((bits[word] >> bit) >> _ONE)
            if word < clock >> 6:  # else the word is still being filled, and not in the tree
                distance += live
                node = word + 1
                while node > 0:
                    distance -= tree[node]
                    node -= node & -node
                node = word + 1
                while node <= words:
                    tree[node] -= 1
                    node += node & -node
            bits[word] ^= _ONE << bit
            histogram[distance_bin(distance)] += 1
        bits[clock >> 6] |= _ONE << np.uint64(clock & 63)
        last[rows[n]] = clock
        clock += 1
        if clock & 63 == 0:
            node = clock >> 6
            added = _set_bits(bits[node - 1])
            while node <= words:
                tree[node] += added
                node += node & -node
        n += 1
    state[CLOCK], state[LIVE] = clock, live
    return n


@compiled
def renumber(last: Slots, bits: Words, tree: Ints, state: Ints) -> None:
    """Give the rows on the stack the first slots, in their order; arguments as in `push`."""
    before = 0
    for word in range(len(bits)):
        tree[word] = before
        before += _set_bits(bits[word])
    for row in range(len(last)):
        slot = np.int64(last[row])
        if slot >= 0:
            below = (_ONE << np.uint64(slot & 63)) - _ONE
            last[row] = tree[slot >> 6] + _set_bits(bits[slot >> 6] & below)
    complete, rest = state[LIVE] >> 6, state[LIVE] & 63
    bits[:complete] = _FULL
    bits[complete:] = 0
    if rest > 0:
        bits[complete] = (_ONE << np.uint64(rest)) - _ONE
    tree[:] = 0
    tree[1 : complete + 1] = WORD_BITS
    for node in range(1, len(tree)):
        parent = node + (node & -node)
        if parent < len(tree):
            tree[parent] += tree[node]
    state[CLOCK] = state[LIVE]
