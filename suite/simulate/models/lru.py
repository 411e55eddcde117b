"""LRU by the batch.

Defined for single accesses; with batches of one row it misses what another simulator misses
(`results/simulate/independent_check.py`). Brought to batches by these rules:

- The distinct rows of a batch are its accesses, in order of first occurrence. A row that occurs several times in a
  batch is accessed once.
- All rows of a batch must be resident together. None of them leaves to make room for another.
- Every missing row enters the cache.
- A batch with more distinct rows than there are slots only fills free slots. No row leaves. Its other rows are read and
  written past the cache, once each, and the batch is counted as an overflow.
- Every cached row has been trained. So every row that leaves is written back, with its optimizer state.
"""

from collections.abc import Mapping

import numpy as np

from suite.simulate.lru_stacks import LruStack
from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import Seen


class LruModel(CacheModel):
    """The row whose last batch is the oldest leaves; of those of one batch, the one that occurred first.

    So the uppermost rows of an LRU stack are cached, as many as there are slots. Memory: that of `LruStack`.
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
