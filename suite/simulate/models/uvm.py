"""Rows that kernels read in place over the link, without a cache."""

import numpy as np

from suite.simulate.models.model import CacheModel, Tally
from suite.simulate.trace import Seen


class UncachedModel(CacheModel):
    """fbgemm's unified virtual memory: forward reads a row per occurrence, backward reads and writes it once.

    The same rules as `systems.unique_counter.UniqueCounter.uncached_uvm`: row-wise state sits on the device, other
    state moves with its row in backward. No memory per row; the simulator's own list of distinct rows takes 4 B.
    """

    source = "fbgemm_gpu's split embedding kernels; systems/unique_counter.py"
    bypasses = True
    state_by_batch = True
    takes_runs = True

    @property
    def slots(self) -> int:
        return 0

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if tally is None:
            return
        rows, _ = batch.unique
        tally.count(batch, rows, np.ones(rows.size, np.bool_), self.setting.trace.table_starts)
        lookups = batch.ids.values.size
        tally.lookup_misses += lookups
        tally.rows_fetched += lookups + rows.size
        tally.rows_written_back += rows.size
