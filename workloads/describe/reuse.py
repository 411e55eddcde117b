"""Reuse distances: how many distinct other rows are accessed between two accesses to the same row.

This is the LRU stack distance, counted from 0 (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage
hierarchies", IBM Systems Journal 9(2), 1970): an LRU cache of C rows hits exactly the accesses whose distance is below
C. The first access to a row has no distance; it misses in every cache.

Computed exactly, with a bit per access and sums over the bits (Bennett and Kruskal, "LRU stack processing", IBM
Journal of Research and Development 19(4), 1975), the sums in a Fenwick tree over words of 64 bits, and slots numbered
anew when they run out: O(n log rows) time for n accesses, memory that depends on the table alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workloads.describe.loops import (
    CLOCK,
    EXACT_BITS,
    FIRST,
    LIVE,
    WORD_BITS,
    Ints,
    Slots,
    push,
    renumber,
)

_FEWEST_WORDS = 64
_LONGEST_BITS = 40
_BINS = (_LONGEST_BITS - EXACT_BITS + 2) << (EXACT_BITS - 1)


def bin_lows(bins: npt.NDArray[np.int64]) -> Ints:
    """Smallest distance in each bin of `loops.distance_bin`."""
    shift = np.maximum(0, (bins >> (EXACT_BITS - 1)) - 1)
    lows: Ints = (bins - (shift << (EXACT_BITS - 1))) << shift
    return lows


@dataclass(frozen=True)
class ReuseHistogram:
    """Reuse distances of a stream.

    Attributes:
        first: Accesses to rows not seen before.
        reuses: Other accesses by bin, int64 `[bins]`.
    """

    first: int
    reuses: Ints

    @property
    def accesses(self) -> int:
        """All accesses."""
        return self.first + int(self.reuses.sum())

    def quantile(self, share: float) -> int | None:
        """The smallest distance that at least this share of the reuses does not exceed; None without reuses.

        Exact below 256; above, the true distance is larger by less than 1/128 of it.
        """
        total = int(self.reuses.sum())
        if total == 0:
            return None
        wanted = max(1, int(np.ceil(share * total)))
        found = np.searchsorted(np.cumsum(self.reuses), wanted)
        return int(bin_lows(np.array([found]))[0])

    def by_powers_of_two(self) -> list[tuple[int, int, int]]:
        """(lowest, highest, reuses) of the distances 0, 1, 2 to 3, 4 to 7, ..., up to the last that occurs; exact."""
        used = np.flatnonzero(self.reuses)
        lows = bin_lows(used)
        made = []
        low, high = 0, 0
        while len(lows) and low <= lows[-1]:
            inside = used[(lows >= low) & (lows <= high)]
            made.append((low, high, int(self.reuses[inside].sum())))
            low, high = high + 1, 2 * high + 1
        return made


class LruStack:
    """An LRU stack of rows that measures the distance of every reuse.

    Memory: 4 B per row (8 B above a billion rows), and 1/2 B for bits and tree.

    Args:
        rows: Rows that may be accessed, numbered from 0.
    """

    def __init__(self, rows: int) -> None:
        # Twice the rows: renumbering visits every row, and with so much room comes once per number of rows at most.
        words = max(_FEWEST_WORDS, -(-2 * rows // WORD_BITS))
        slot = np.int32 if words * WORD_BITS < 1 << 31 else np.int64
        self._last: Slots = np.full(rows, -1, slot)
        self._bits = np.zeros(words, np.uint64)
        self._tree = np.zeros(words + 1, np.int64)
        self._state = np.zeros(max(CLOCK, LIVE, FIRST) + 1, np.int64)
        self._histogram = np.zeros(_BINS, np.int64)

    def access(self, rows: Ints) -> None:
        """Access rows in order.

        Args:
            rows: int64 `[n]`, each from 0 to the number of rows.
        """
        done = 0
        while True:
            done = push(rows, done, self._last, self._bits, self._tree, self._state, self._histogram)
            if done == len(rows):
                return
            renumber(self._last, self._bits, self._tree, self._state)

    def histogram(self) -> ReuseHistogram:
        """Distances so far."""
        return ReuseHistogram(first=int(self._state[FIRST]), reuses=self._histogram.copy())
