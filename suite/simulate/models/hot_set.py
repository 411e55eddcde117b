"""A fixed hot set, and the order of rows by frequency that it and others are chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from suite.simulate.models.model import CacheModel, RowBytes, Setting, Tally
from suite.simulate.traces.trace import Int32s, Int64s, Seen, Trace
from systems.freq_cache.compiled import compiled

_COUNTED = 1 << 16
"""Rows of lower frequencies are ranked by counting, the few others by sorting."""


class HotSetModel(CacheModel):
    """FAE: the most frequent rows sit on the device from the start, and no other row ever does.

    The hot set has as many rows as there are slots, those of the highest frequencies; of equals the lower rows. Cold
    rows stay with the host, which reads them for the lookup and updates them itself: each distinct cold row of a batch
    is a miss, counted as fetched once (its weights, or what pooling makes of them) and written back once (a gradient of
    the same size); its optimizer state does not move. The batches are taken as they come: FAE's sorting of samples into
    hot and mixed batches, and bringing the hot rows of host and device in line where the two alternate, are left out.

    Memory: 1 B per row, none per slot; while it is built also 4 B per row for ranks, kept with the trace, and the
    trace's frequencies.
    """

    source = "arXiv 2103.00686"
    bypasses = True

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._cold = ranks(setting.trace) >= setting.slots

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if tally is None:
            return
        rows, occurrences = batch.unique
        missed = self._cold[rows]
        misses = int(np.count_nonzero(missed))
        tally.count(batch, rows, missed, self.setting.trace.table_starts)
        tally.lookup_misses = (tally.lookup_misses or 0) + int(occurrences[missed].sum())
        tally.rows_fetched += misses
        tally.rows_written_back += misses
        tally.overflow_batches += rows.size > self.slots

    def bytes_moved(self, tally: Tally, row: RowBytes) -> tuple[int, int]:
        """Bytes fetched and bytes written back: optimizer state stays where its row is trained."""
        return tally.rows_fetched * row.weights, tally.rows_written_back * row.weights


_RANKED: WeakKeyDictionary[Trace, Int32s] = WeakKeyDictionary()
"""Ranks by trace: they are the same whatever the size of the cache."""


def ranks(trace: Trace) -> Int32s:
    """The place of every row by falling frequency, from 0 on, int32 `[rows]`; of equals the lower row comes first."""
    if trace not in _RANKED:
        _RANKED[trace] = ranks_of(trace.frequencies())
    return _RANKED[trace]


def ranks_of(frequencies: Sequence[Int64s]) -> Int32s:
    """The same from the accesses per row of each table, int64 `[rows]`, at least 0."""
    starts = np.cumsum([0, *(counts.size for counts in frequencies)])
    rows_at = np.zeros(_COUNTED + 1, np.int64)
    for counts in frequencies:
        _count(counts, rows_at)
    often = [np.flatnonzero(counts >= _COUNTED) for counts in frequencies]
    rows = np.concatenate([start + few for start, few in zip(starts, often, strict=False)])
    accesses = np.concatenate([counts[few] for counts, few in zip(frequencies, often, strict=True)])
    found = np.empty(starts[-1], np.int32)
    found[rows[np.argsort(-accesses, kind="stable")]] = np.arange(rows.size)
    next_at = rows_at[::-1].cumsum()[::-1] - rows_at
    for start, counts in zip(starts, frequencies, strict=False):
        _rank(counts, next_at, found[start : start + counts.size])
    return found


@compiled
def _count(counts, rows_at):
    for row in range(counts.size):
        rows_at[min(counts[row], _COUNTED)] += 1


@compiled
def _rank(counts, next_at, found):
    """`next_at`: the rank that the next row of each frequency below the bar gets."""
    for row in range(counts.size):
        if counts[row] < _COUNTED:
            found[row] = next_at[counts[row]]
            next_at[counts[row]] += 1
