"""A fixed scrambling of every table's ranks into row ids, so that the order of ids says nothing about frequency."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workloads.streams.draws import ROUNDS, Mixers, scramble

Ints = npt.NDArray[np.int64]


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
        keys = generator.random_raw(2 * ROUNDS * len(rows)).reshape(2, ROUNDS, len(rows))
        self._mixers = Mixers(
            np.asarray(rows, dtype=np.uint64),
            np.ascontiguousarray(keys[0].T) | np.uint64(1),
            np.ascontiguousarray(keys[1].T),
            np.asarray([(1 << width) - 1 for width in bits], dtype=np.uint64),
            np.asarray([max(1, (width + 1) // 2) for width in bits], dtype=np.uint64),
        )

    def ids(self, ranks: Ints, starts: Ints | None = None, *, first_table: int = 0) -> Ints:
        """Row ids of ranks, each in `[0, rows)` of its table, int64 in their shape.

        Args:
            ranks: int64 `[tables, n]`, or flat, table after table.
            starts: Where each table's begin in flat ones, and their number, int64 `[tables + 1]`.
            first_table: Number of the first of these tables.
        """
        if starts is None:
            starts = np.arange(len(ranks) + 1) * ranks.shape[1]
        ids = np.empty(ranks.size, dtype=np.int64)
        scramble(np.ascontiguousarray(ranks).reshape(-1), starts, first_table, self._mixers, ids)
        return ids.reshape(ranks.shape)

    def table_ids(self, table: int, ranks: Ints) -> Ints:
        """Row ids of one table's ranks, int64 `[n]`."""
        return self.ids(ranks, np.asarray([0, ranks.size]), first_table=table)
