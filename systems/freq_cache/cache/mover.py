"""Carrying rows, as records, between the slow tier and slots on the device: for a batch, and for anything else."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import EvictStaging, FetchStaging
from systems.freq_cache.cache.traffic import Traffic
from systems.freq_cache.cache.transfer import H2DCopy, Transfer
from systems.freq_cache.cache.writer import Writer
from systems.freq_cache.planner.planner import Plan
from systems.freq_cache.tiers import PinnedTier, SlowTier

Int32s = NDArray[np.int32]

_CHUNK_BYTES = 8 << 20
_MOST_WAITING = 4
"""Batches whose records may wait in host memory to be written back."""


@dataclass
class Planned:
    """A planned batch, and how far it has come.

    Attributes:
        plan: Which rows leave and enter.
        offsets: Where its bags begin and the last one ends, int32; empty: every bag has one id.
        fetch_rows, fetch_slots: Those of the plan, rows first that the slow tier had when the batch was sent, and last
            those that the batch before it sends to the slow tier, for they are on the device until then.
        early, last: How many rows these are.
        before: The batch before it, when it was sent.
        sent: On the device, int32: the slot of every id, the slots to fetch into, those to write back, the rows to
            fetch, those to write back if the device does that, the numbers of the last rows among those that leave
            with the batch before, the offsets. None: not yet.
        rows_written_back, rows_fetched: How many of its rows have been moved.
        rows_read: How many of the rows to fetch have been read; those that are not fetched yet are in staging.
    """

    plan: Plan
    offsets: Int32s
    fetch_rows: Int32s = field(init=False)
    fetch_slots: Int32s = field(init=False)
    early: int = 0
    last: int = 0
    before: int = -1
    sent: H2DCopy | None = None
    rows_written_back: int = 0
    rows_fetched: int = 0
    rows_read: int = 0


class BatchMover:
    """Moves the rows that batches need, by way of staging: changed ones out of a pool, then missing ones into it.

    Batches are sent and moved in the order of their plans, at most one is sent ahead of that in hand. `send` may run on
    a thread of its own; it touches no slot. Staging has room for `rows` records in each of its `PLACES`.

    Whatever ends `move` half-way, the same call goes on rightly: what is counted in `Planned` was done before it was
    counted, and doing it twice does no harm.
    """

    PLACES = 3
    """One for the batch in hand, one for the batch that is sent ahead, one for what leaves."""

    def __init__(self, pool: SlotTable, *, tier: SlowTier, writer: Writer, transfer: Transfer, rows: int) -> None:
        self._pool = pool
        self._writer = writer
        self._transfer = transfer
        self._entries = (FetchStaging(rows, tier, transfer), FetchStaging(rows, tier, transfer))
        self._exit = EvictStaging(rows, tier.layout, transfer)
        self._exchanged = tier if isinstance(tier, PinnedTier) and tier.exchanges else None
        self._before: tuple[int, Int32s] = (-1, np.empty(0, np.int32))
        """The batch that was sent last, and the rows that leave with it."""

    def send(self, planned: Planned) -> None:
        """Send the device what it must know of a batch, and the rows that the slow tier has by now; see `Cache`."""
        self._sent(planned)
        entry = self._entries[planned.plan.batch % 2]
        self._add(planned, entry, min(planned.early, entry.rows) - planned.rows_read)

    def move(self, planned: Planned, traffic: Traffic) -> None:
        """Write back and fetch the rows of a batch, as `Cache.move`."""
        plan = planned.plan
        _, fetch_slots, back_slots, _, back_rows, again, _ = self.numbers(planned)
        size, kept = planned.fetch_rows.size, None
        if again.numel() and planned.rows_fetched < size and self._exit.batch == planned.before:
            kept, size = self._exit.again(again), size - planned.last
        while planned.rows_written_back < plan.back_rows.size:
            chunk = slice(planned.rows_written_back, planned.rows_written_back + self._exit.rows)
            rows, slots = as_long(plan.back_rows[chunk]), back_slots[chunk]
            with traffic.timed("write_back_wait_s"):
                tier = self._exchanged
                if tier is None:  # what the device writes home takes no host memory
                    self._writer.wait(plan.batch - _MOST_WAITING)
                read = self._pool.read(slots, self._exit.room(rows.numel()))
                records = self._exit.scatter(read, tier, back_rows[chunk]) if tier else self._exit.send(read)
                self._writer.write(rows, records, batch=plan.batch)
                planned.rows_written_back += rows.numel()
                traffic.rows_written_back += rows.numel()
            if rows.numel() == plan.back_rows.size and not self._exchanged:
                self._exit.batch = plan.batch
        entry, late = self._entries[plan.batch % 2], False
        while planned.rows_fetched < size:
            stop = min(size, planned.rows_fetched + entry.rows)
            missing = stop - planned.rows_read
            if missing:
                late = True
                after = int(plan.fetch_after.max())
                if stop > planned.early and self._writer.landed < after:
                    with traffic.timed("write_back_wait_s"):
                        self._writer.wait(after)
                with traffic.timed("fetch_wait_s"):
                    self._add(planned, entry, missing)
            count = stop - planned.rows_fetched
            self._pool.fill(fetch_slots[planned.rows_fetched : stop], entry.take(count))
            entry.clear()
            traffic.rows_fetched += count
            planned.rows_fetched = stop
        if kept is not None:
            self._pool.fill(fetch_slots[size:], kept)
            traffic.rows_fetched += planned.last
            planned.rows_fetched += planned.last
        traffic.late_batches += late
        if not plan.overflow:
            self._writer.moved(plan.batch)

    def numbers(self, planned: Planned) -> tuple[Tensor, ...]:
        """What was sent of a batch beside its rows, for work queued from here on; see `Planned.sent`."""
        return self._sent(planned).take()

    def _add(self, planned: Planned, entry: FetchStaging, count: int) -> None:
        """Read the next rows of a batch."""
        if count > 0:
            chunk = slice(planned.rows_read, planned.rows_read + count)
            place = planned.rows_read - planned.rows_fetched
            entry.add(as_long(planned.fetch_rows[chunk]), self._sent(planned).tensors[3][chunk], place=place)
            planned.rows_read = chunk.stop

    def _sent(self, planned: Planned) -> H2DCopy:
        """What is sent of a batch beside its rows; only the first call sends it."""
        if planned.sent is not None:
            return planned.sent
        plan = planned.plan
        has = plan.fetch_after <= self._writer.landed
        kept, again = self._leaving_now(plan, has)
        order = slice(None) if has.all() else np.argsort((2 * kept + ~(has | kept)).astype(np.int8), kind="stable")
        planned.early, planned.last, planned.before = int(np.count_nonzero(has)), again.size, self._before[0]
        planned.fetch_rows, planned.fetch_slots = plan.fetch_rows[order], plan.fetch_slots[order]
        back_rows = plan.back_rows[: plan.back_rows.size if self._exchanged else 0]
        planned.sent = self._transfer.pack(
            plan.slot_of_id, planned.fetch_slots, plan.back_slots, planned.fetch_rows, back_rows, again, planned.offsets
        )
        self._before = (plan.batch, plan.back_rows)
        return planned.sent

    def _leaving_now(self, plan: Plan, has: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Int32s]:
        """Which of the rows to fetch leave with the batch before, and their numbers among those, int32."""
        batch, gone = self._before
        none = np.zeros_like(has), gone[:0]
        if has.all() or self._exchanged or not 0 < gone.size <= self._exit.rows:
            return none
        leaves = ~has & (plan.fetch_after == batch)
        if not leaves.any():
            return none
        order = np.argsort(gone)
        wanted = plan.fetch_rows[leaves]
        found = order[np.minimum(np.searchsorted(gone, wanted, sorter=order), gone.size - 1)]
        leaves[leaves] = same = gone[found] == wanted  # a batch that bypassed the cache takes its rows home by itself
        return leaves, found[same].astype(np.int32)


class RowMover:
    """Reads rows of a slow tier into the memory of the device, and into slots of any pool."""

    def __init__(self, tier: SlowTier, transfer: Transfer) -> None:
        self.tier = tier
        self.transfer = transfer
        self.chunk_rows = max(1, _CHUNK_BYTES // tier.layout.record_bytes)
        """Rows moved at a time where many are: when the cache is filled or flushed."""

    def fill(self, pool: SlotTable, slots: NDArray[Any], rows: Int32s) -> None:
        """Overwrite slots `[n]` with rows of the slow tier, a chunk at a time."""
        for start in range(0, rows.size, self.chunk_rows):
            chunk = slice(start, start + self.chunk_rows)
            pool.fill(self.on_device(slots[chunk]), self.fetch(as_long(rows[chunk])))

    def fetch(self, rows: Tensor) -> Tensor:
        """The records of rows, int64 `[n]`, on the device."""
        records = self.tier.layout.empty(rows.numel(), pin=self.transfer.pins)
        self.tier.read(rows, records)
        return self.transfer.to_device(records)

    def on_device(self, numbers: NDArray[Any]) -> Tensor:
        """Row or slot numbers as int64 on the device."""
        return self.transfer.to_device(as_long(numbers))


def as_long(numbers: NDArray[Any]) -> Tensor:
    """As an int64 tensor on the host."""
    return torch.from_numpy(numbers.astype(np.int64))
