"""Working sets: the distinct rows that a batch, or a window of consecutive batches, needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.describe.loops import Ints, Windows, mark_windows


@dataclass(frozen=True)
class WindowCounts:
    """Aligned windows of one length that do not overlap.

    Attributes:
        batches: Batches per window.
        distinct: Distinct rows over all tables by window, int64 `[windows]`.
        accesses: Accesses in all of the windows.
    """

    batches: int
    distinct: Ints
    accesses: int


class WorkingSets:
    """Counts distinct rows in windows of 1, 2, 4, ... batches, as many lengths as fit into the stream.

    Only full windows count. Memory: 4 B per row and 24 B per batch.

    Args:
        table_rows: Rows by table.
        batch_size: Samples per batch.
        samples: Samples of the stream.

    Attributes:
        by_table: Sums over the full batches, int64 `[tables, 2]`: distinct rows in a batch, accesses.
    """

    def __init__(self, table_rows: Sequence[int], *, batch_size: int, samples: int) -> None:
        batches = samples // batch_size
        self.by_table = np.zeros((len(table_rows), 2), np.int64)
        full = np.array([batches >> length for length in range(batches.bit_length())], np.int64)
        self._windows = Windows(
            batch_size=batch_size,
            full=full,
            starts=np.cumsum(full) - full,
            distinct=np.zeros(full.sum(), np.int64),
            accesses=np.zeros(batches, np.int64),
        )
        self._last_batch = [np.full(rows, -1, np.int32) for rows in table_rows]

    @property
    def batches(self) -> int:
        """Full batches of the stream."""
        return len(self._windows.accesses)

    def access(self, table: int, ids: Ints, offsets: Ints, *, first_sample: int) -> None:
        """Take the ids of some samples, which follow those taken before for the same table.

        Args:
            table: Position of the table.
            ids: Ids by sample, int64 `[accesses]`.
            offsets: Where the ids of a sample begin, int64 `[samples + 1]`.
            first_sample: Position of the first sample in the stream.
        """
        if self.batches:
            mark_windows(ids, offsets, first_sample, self._windows, self._last_batch[table], self.by_table[table])

    def counts(self) -> list[WindowCounts]:
        """Counts so far, shortest windows first; nothing where the stream has no full batch."""
        windows, made = self._windows, []
        for length, (start, full) in enumerate(zip(windows.starts, windows.full, strict=True)):
            accesses = int(windows.accesses[: full << length].sum())
            made.append(WindowCounts(1 << length, windows.distinct[start : start + full], accesses))
        return made
