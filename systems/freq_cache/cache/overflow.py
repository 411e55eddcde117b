"""Batches with more distinct rows than the cache has slots: looked up in a pool of their own, beside the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from systems.contract import WorkingSetTooLarge
from systems.freq_cache.cache.mover import Int32s, RowMover, as_long
from systems.freq_cache.cache.pool import RowPool
from systems.freq_cache.cache.traffic import Traffic
from systems.freq_cache.cache.writer import Writer
from systems.freq_cache.planner.planner import Plan


@dataclass
class _Bypassing:
    """A batch that was looked up beside the cache. `trained`: backward changes its rows."""

    plan: Plan
    trained: bool


class Overflow:
    """Serves one batch at a time that exceeds the cache: `look_up` brings its rows together, `finish` takes them home.

    Args:
        slots: The cache's own slots.
        make_pool: Makes a pool; takes its number of slots.
        mover: Between slow tier and device.
        writer: Of the slow tier.
        remedy: Says what to give for a number of slots; such a batch is then refused with it. None: it is served.
    """

    def __init__(
        self,
        slots: RowPool,
        *,
        make_pool: Callable[[int], RowPool],
        mover: RowMover,
        writer: Writer,
        remedy: Callable[[int], str] | None,
    ) -> None:
        self._slots = slots
        self._make_pool = make_pool
        self._mover = mover
        self._writer = writer
        self._remedy = remedy
        self._batch: _Bypassing | None = None
        self.pool: RowPool | None = None

    @property
    def busy(self) -> bool:
        """Whether a batch was looked up whose rows are not home yet."""
        return self._batch is not None

    def look_up(self, plan: Plan, traffic: Traffic, *, alone: bool) -> RowPool:
        """A pool in which row `i` of the plan's distinct rows is in slot `i`. `alone`: no other batch is in flight.

        Raises:
            WorkingSetTooLarge: such a batch is to be refused; the message says what to give.
        """
        if not alone:
            self._writer.moved(plan.batch)
            raise WorkingSetTooLarge(
                f"the batches that wait for one backward have more distinct rows of width "
                f"{self._mover.tier.layout.dim} than the cache has slots, {self._slots.slots:,}: give it more, or call "
                "backward in between"
            )
        if self._remedy is not None:
            self._writer.moved(plan.batch)
            raise WorkingSetTooLarge(
                f"one batch has {plan.unique_ids:,} distinct rows of width {self._mover.tier.layout.dim}, the budget "
                f"holds {self._slots.slots:,}: {self._remedy(plan.unique_ids)}"
            )
        if self.pool is None or self.pool.slots < plan.unique_ids:
            self.pool = None  # frees the smaller pool before the larger one is made
            self.pool = self._make_pool(1 << (plan.unique_ids - 1).bit_length())
        pool = self.pool
        pool.steps = self._slots.steps
        held, absent = _held_and_absent(plan)
        if held.size:
            self._mover.copy(self._slots, plan.slots[held], pool, held)
        self._writer.wait()  # for all rows that earlier batches write back
        if absent.size:
            self._mover.fill(pool, absent, plan.rows[absent])
        self._batch = _Bypassing(plan, torch.is_grad_enabled())
        traffic.rows_fetched += absent.size
        return pool

    def finish(self, traffic: Traffic) -> None:
        """Take the rows of the last such batch home: to their slot if they have one, else to the slow tier."""
        batch, self._batch = self._batch, None
        if batch is None or self.pool is None:
            return
        plan = batch.plan
        if batch.trained:
            held, absent = _held_and_absent(plan)
            if held.size:
                self._mover.copy(self.pool, held, self._slots, plan.slots[held])
            if absent.size:
                self._writer.write(as_long(plan.rows[absent]), self._mover.read(self.pool, absent), batch=plan.batch)
            self._slots.steps = self.pool.steps
            traffic.rows_written_back += absent.size
        self._writer.moved(plan.batch)


def _held_and_absent(plan: Plan) -> tuple[Int32s, Int32s]:
    """Positions of the distinct rows that have a slot, and of those that have none, int32."""
    has_slot = plan.slots >= 0
    return np.flatnonzero(has_slot).astype(np.int32), np.flatnonzero(~has_slot).astype(np.int32)
