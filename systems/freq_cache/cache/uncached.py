"""Lookups in a pool of their own: batches that bypass the cache, and batches that leave it as it is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from systems.contract import WorkingSetTooLarge
from systems.freq_cache.cache.mover import RowMover, WriteBackFailed, Writer, as_long
from systems.freq_cache.cache.plan import CacheCounters, Int32s, Plan
from systems.freq_cache.cache.slot_table import SlotTable


@dataclass
class Overflow:
    """Serves one overflow batch at a time: `look_up` gathers its rows in a pool, `finish` writes them back.

    Attributes:
        slots: The cache's own slots.
        remedy: Text that says how to get a given number of slots; overflow batches are refused with it. None: served.
        batch: The plan of the batch that was looked up and is not written back yet.
        trained: Backward changes the rows of that batch.
        pool: The pool, once one was needed.
    """

    slots: SlotTable
    make_pool: Callable[[int], SlotTable]
    mover: RowMover
    writer: Writer
    remedy: Callable[[int], str] | None
    batch: Plan | None = None
    trained: bool = False
    pool: SlotTable | None = None

    def hold(self, rows: Int32s, slots: Int32s) -> SlotTable:
        """A pool in which row `i` of distinct rows is in slot `i`. `slots`: those that they have, below 0 for none."""
        if self.pool is None or self.pool.slots < rows.size:
            self.pool = None  # frees the smaller pool before the larger one is made
            self.pool = self.make_pool(1 << (rows.size - 1).bit_length())
        held, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self.pool.copy(self.mover.on_device(held), self.slots, self.mover.on_device(slots[held]))
        self.writer.wait()  # for all rows that earlier batches write back
        self.mover.fill(self.pool, absent, rows[absent])
        return self.pool

    def look_up(self, plan: Plan, traffic: CacheCounters, *, alone: bool) -> SlotTable:
        """A pool that holds the distinct rows of a plan. `alone`: no other batch is in flight.

        Raises:
            WorkingSetTooLarge: the batch is refused; the message names the remedy.
        """
        width, slots = self.mover.tier.layout.dim, f"{self.slots.slots:,}"
        if not alone or self.remedy is not None:
            self.writer.moved(plan.batch)
        if not alone:
            raise WorkingSetTooLarge(
                f"the batches that wait for one backward have more distinct rows of width {width} than the cache has "
                f"slots, {slots}: give it more, or call backward in between"
            )
        if self.remedy is not None:
            raise WorkingSetTooLarge(
                f"one batch has {plan.unique_ids:,} distinct rows of width {width}, the budget holds {slots}: "
                f"{self.remedy(plan.unique_ids)}"
            )
        pool = self.hold(plan.rows, plan.slots)
        pool.steps = self.slots.steps
        self.batch, self.trained = plan, torch.is_grad_enabled()
        traffic.rows_fetched += int(np.count_nonzero(plan.slots < 0))
        return pool

    def finish(self, traffic: CacheCounters) -> None:
        """Write back the rows of the last overflow batch: to their slots if they have some, else to the slow tier.

        After an error the call may be repeated.

        Raises:
            WriteBackFailed: see `Writer.wait`.
        """
        plan = self.batch
        if plan is None or self.pool is None:
            return
        if self.trained:
            held, absent = np.flatnonzero(plan.slots >= 0), np.flatnonzero(plan.slots < 0)
            self.slots.copy(self.mover.on_device(plan.slots[held]), self.pool, self.mover.on_device(held))
            leaving = self.mover.transfer.to_host(self.pool.records(self.mover.on_device(absent)))
            self.slots.steps = self.pool.steps
            try:
                self.writer.write(as_long(plan.rows[absent]), leaving, batch=plan.batch)
            except WriteBackFailed:  # the writer keeps the rows
                self.batch = None
                self.writer.moved(plan.batch)
                raise
            traffic.rows_written_back += absent.size
        self.batch = None
        self.writer.moved(plan.batch)
