"""A fixed scrambling of every table's ranks into row ids, so that the order of ids says nothing about frequency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ROUNDS = 3


class RankScrambler:
    """One bijection of `[0, rows)` per table, computed rather than stored.

    A mixer of multiplications by odd numbers and right shifts permutes the next power of two; a result that is no row
    is mixed again until it is one (cycle walking, Black and Rogaway 2002), which keeps the map one to one.

    Args:
        rows: Rows per table, each 1 to 2**63.
        generator: Source of the multipliers; equal streams give equal bijections.
    """

    def __init__(self, rows: Sequence[int], *, generator: np.random.Philox) -> None:
        bits = [(count - 1).bit_length() for count in rows]
        self._rows = np.asarray(rows, dtype=np.uint64)[:, None]
        self._mask = np.asarray([(1 << width) - 1 for width in bits], dtype=np.uint64)[:, None]
        self._shift = np.asarray([max(1, (width + 1) // 2) for width in bits], dtype=np.uint64)[:, None]
        keys = generator.random_raw(2 * _ROUNDS * len(rows)).reshape(2, _ROUNDS, len(rows), 1)
        self._multipliers: Words = keys[0] | np.uint64(1)
        self._offsets: Words = keys[1]

    def ids(self, ranks: Ints) -> Ints:
        """Row ids of ranks.

        Args:
            ranks: int64 `[tables, n]`, each in `[0, rows)` of its table.

        Returns:
            int64 `[tables, n]`, C-contiguous.
        """
        return self._scramble(ranks, slice(None))

    def table_ids(self, table: int, ranks: Ints) -> Ints:
        """Row ids of one table's ranks, int64 `[n]`."""
        ids: Ints = self._scramble(ranks[None], slice(table, table + 1))[0]
        return ids

    def _scramble(self, ranks: Ints, tables: slice) -> Ints:
        rows = self._rows[tables]
        words = ranks.astype(np.uint64, order="C")
        self._mix(
            words, self._multipliers[:, tables], self._offsets[:, tables], self._mask[tables], self._shift[tables]
        )
        flat = words.reshape(-1)
        astray = np.flatnonzero(words >= rows)
        while astray.size:
            table = astray // ranks.shape[1] + (tables.start or 0)
            again = flat[astray]
            self._mix(
                again,
                self._multipliers[:, table, 0],
                self._offsets[:, table, 0],
                self._mask[table, 0],
                self._shift[table, 0],
            )
            flat[astray] = again
            astray = astray[again >= self._rows[table, 0]]
        return words.view(np.int64)

    @staticmethod
    def _mix(words: Words, multipliers: Words, offsets: Words, mask: Words, shift: Words) -> None:
        """Permute `[0, mask]` in place; parameters are `[rounds, ...]` and broadcast against the words."""
        for multiplier, offset in zip(multipliers, offsets, strict=True):
            # The offset keeps 0, the most frequent rank of every table, from being a fixed point.
            words += offset
            words *= multiplier
            words &= mask
            words ^= words >> shift
