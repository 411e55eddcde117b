"""Working sets: the distinct rows that a batch, or a window of consecutive batches, needs."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workloads.compiled import compiled
from workloads.describe.description import WindowFigures
from workloads.frequency import Ints

WINDOWS = (1, 4, 16, 64)
"""Window lengths in batches; each is a multiple of the one before."""


class WorkingSets:
    """Counts distinct rows in windows of so many batches as `WINDOWS` says.

    The windows of one length are aligned and do not overlap, and only full windows count. Memory: 4 B per row and 40 B
    per batch.
    """

    def __init__(self, table_rows: Sequence[int], *, batch_size: int, samples: int) -> None:
        self._batch_size = batch_size
        self._accesses = np.zeros(samples // batch_size, np.int64)  # by batch
        self._distinct = np.zeros((len(WINDOWS), samples // batch_size), np.int64)  # by length and window
        self._last_batch = [np.full(rows, -1, np.int32) for rows in table_rows]

    def access(self, table: int, ids: Ints, offsets: Ints, *, first_sample: int) -> None:
        """Take the ids of some samples, from `first_sample` of the stream on, for the table of that number.

        `offsets`, int64 `[samples + 1]`, say where the ids of a sample begin.
        """
        samples = first_sample + np.arange(len(offsets) - 1)
        batches = np.repeat(samples // self._batch_size, np.diff(offsets))
        in_full_batches = np.searchsorted(batches, len(self._accesses))
        _mark(ids, batches[:in_full_batches], self._accesses, self._distinct, self._last_batch[table])

    def figures(self) -> tuple[WindowFigures, ...]:
        """The working sets so far, shortest windows first; only lengths of which the stream has a full window."""
        made = []
        for length, by_window in zip(WINDOWS, self._distinct, strict=True):
            full = len(self._accesses) // length
            if full == 0:
                break
            distinct, accesses = by_window[:full], int(self._accesses[: full * length].sum())
            made.append(
                WindowFigures(
                    batches=length,
                    windows=full,
                    mean_distinct=float(distinct.mean()),
                    max_distinct=int(distinct.max()),
                    unique_share=int(distinct.sum()) / accesses if accesses else None,
                )
            )
        return tuple(made)


@compiled
def _mark(ids: Ints, batches: Ints, accesses: Ints, distinct: Ints, last_batch: npt.NDArray[np.int32]) -> None:
    """Count the accesses of one table, and its rows that are new in a window, onto those of other tables.

    A row is new in a window when its previous batch lies in an earlier one. The windows are nested: where a row is not
    new in one, it is not new in any longer one.

    `ids` are in the order of the stream, those without a batch last; `accesses` are int64 `[batches]`, `distinct` int64
    `[lengths, batches]`, and `last_batch` has the batch of each row's latest access, -1 for none.
    """
    for position in range(len(batches)):
        row, batch = ids[position], batches[position]
        previous = last_batch[row]
        last_batch[row] = batch
        accesses[batch] += 1
        for length in range(len(WINDOWS)):
            window = batch // WINDOWS[length]
            if previous // WINDOWS[length] == window:
                break
            distinct[length, window] += 1
