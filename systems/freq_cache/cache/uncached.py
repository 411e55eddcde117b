"""Lookups of rows without a slot: batches that bypass the cache, and inference, which leaves it as it is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec import PoolingType

from systems.contract import WorkingSetTooLarge
from systems.freq_cache.cache.mover import RowMover, WriteBackFailed, Writer, as_long
from systems.freq_cache.cache.plan import CacheCounters, Ids, Plan
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.slot_table import SlotTable


@dataclass
class Overflow:
    """Serves one overflow batch at a time: `look_up` gathers its rows in a pool, `finish` writes them back.

    Attributes:
        slots: The cache's own slots.
        remedy: Text that says how to get a given number of slots; overflow batches are refused with it. None: served.
        batch: The plan of the batch that was looked up and is not written back yet.
        trained: Backward changes the rows of that batch.
        pool: The pool of overflow batches, once there was one.
    """

    slots: SlotTable
    make_pool: Callable[[int], SlotTable]
    mover: RowMover
    writer: Writer
    remedy: Callable[[int], str] | None
    batch: Plan | None = None
    trained: bool = False
    pool: SlotTable | None = None

    def look_up(self, plan: Plan, traffic: CacheCounters, *, alone: bool) -> SlotTable:
        """A pool in which row `i` of the plan's distinct rows is in slot `i`. `alone`: no other batch is in flight.

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
        if self.pool is None or self.pool.slots < plan.unique_ids:
            self.pool = None  # frees the smaller pool before the larger one is made
            self.pool = self.make_pool(1 << (plan.unique_ids - 1).bit_length())
        pool = self.pool
        pool.steps = self.slots.steps
        held, absent = np.flatnonzero(plan.slots >= 0), np.flatnonzero(plan.slots < 0)
        pool.copy(self.mover.on_device(held), self.slots, self.mover.on_device(plan.slots[held]))
        self.writer.wait()  # for all rows that earlier batches write back
        self.mover.fill(pool, absent, plan.rows[absent])
        self.batch, self.trained = plan, torch.is_grad_enabled()
        traffic.rows_fetched += absent.size
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


@dataclass(frozen=True)
class Inference:
    """Looks rows up in their slots, or reads them from the slow tier without keeping them.

    All plans of `planner` must have been moved, and all write-backs must have reached the tier of `mover`.
    """

    planner: Planner
    slots: SlotTable
    mover: RowMover
    pooling: PoolingType

    def look_up(self, ids: Ids, weights: Tensor | None) -> Tensor:
        """As `SlotTable.look_up`, fp32 without a gradient. The caller has checked the ids; weights on any device."""
        rows = ids.values + np.repeat(ids.starts, np.diff(ids.ends, prepend=0))
        distinct, inverse = np.unique(rows, return_inverse=True)
        values, at = self._values(distinct), self.mover.on_device(inverse)
        if self.pooling is PoolingType.NONE:
            return values.index_select(0, at)
        bags = nn.functional.embedding_bag(
            at,
            values,
            self.mover.on_device(ids.offsets),
            mode="sum",
            per_sample_weights=None if weights is None else weights.to(values),
            include_last_offset=True,
        )
        if self.pooling is PoolingType.MEAN:
            # multiply by the reciprocal, as fbgemm's kernels do; torch would divide
            bags *= self.mover.on_device(np.diff(ids.offsets).clip(min=1)).float().reciprocal()[:, None]
        by_feature: Tensor = bags.unflatten(0, (ids.starts.size, (ids.offsets.size - 1) // ids.starts.size))
        return by_feature.transpose(0, 1).flatten(1)

    def _values(self, rows: NDArray[np.int64]) -> Tensor:
        """Distinct rows, fp32 `[n, dim]` on the device."""
        slots = self.planner.slots_of(rows)
        held, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        dim = self.slots.layout.dim
        values = torch.empty(rows.size, dim, dtype=torch.float32, device=self.slots.weights.device)
        in_slots = self.slots.weights.index_select(0, self.mover.on_device(slots[held]))
        values[self.mover.on_device(held)] = in_slots[:, :dim].float()
        fetched = self.slots.layout.weights(self.mover.fetch(as_long(rows[absent])))
        values[self.mover.on_device(absent)] = fetched[:, :dim].float()
        return values
