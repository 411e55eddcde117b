"""Moves the rows of a batch, as records, between the slow tier and slots on the device."""

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from systems.freq_cache.cache.plan import CacheCounters, Int32s, Plan
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import D2HCopy, EvictStaging, FetchStaging, H2DCopy, Transfer
from systems.freq_cache.tiers.slow_tier import PinnedTier, SlowTier
from systems.threads import Task, Worker

_MOST_WAITING = 4
"""Maximum batches whose records wait in host memory for write-back."""


class WriteBackFailed(RuntimeError):
    """Changed rows could not be written to the slow tier. They are kept in memory, and `flush()` tries again."""


@dataclass
class _Write:
    batch: int
    rows: Int32s
    records: D2HCopy
    stored: bool = False
    task: Task[None] | None = None


class Writer:
    """Write-backs in the order of their batches. Without a worker each is done before `write` returns.

    Only one thread stores rows: the worker's, or without one the training thread. It starts with the oldest write that
    is not stored, so a write that failed, or was interrupted, is tried again before any later one.
    """

    def __init__(self, tier: SlowTier, worker: Worker | None) -> None:
        self._tier = tier
        self._worker = worker
        self._writes: deque[_Write] = deque()  # only the training thread adds and removes
        self._moved = -1

    def write(self, rows: Int32s, records: D2HCopy, *, batch: int) -> None:
        """Write records, `[n, width]`, over rows `[n]`."""
        write = _Write(batch, rows, records)
        if records.home and self._writes and self._writes[-1].records.home:
            write.batch = self._writes[-1].batch  # the device writes in order: the last one stands for all from there
            self._writes[-1] = write
            return
        self._writes.append(write)
        if records.home:
            return  # readers of the rows wait for the device, by `wait` or by stream order
        if self._worker is None:
            self._store_now(write)
        else:
            write.task = self._worker.submit(partial(self._store, write))

    def moved(self, batch: int) -> None:
        """Note that a batch was moved: all of its write-backs were passed to `write`. Failed ones: see `wait`."""
        self._moved = batch
        self._tier.moved(batch)
        while self._writes and self._writes[0].stored:
            self._writes.popleft()
        oldest = self._writes[0] if self._writes else None
        if oldest is not None and oldest.task is not None and oldest.task.done and not oldest.stored:
            self.wait(oldest.batch)

    @property
    def landed(self) -> int:
        """Last batch up to which the slow tier holds all write-backs, or will when the device reads them."""
        moved = self._moved  # before the writes: what is added meanwhile belongs to a later batch
        late = [write.batch for write in tuple(self._writes) if not (write.records.home or write.stored)]
        return min([moved, *(batch - 1 for batch in late)])

    def wait(self, batch: int | None = None) -> None:
        """Wait until the tier holds all rows that batches up to this one wrote back. Failed writes are tried once more.

        Raises:
            WriteBackFailed: it failed again; its cause says why.
        """
        while self._writes and (batch is None or self._writes[0].batch <= batch):
            write = self._writes[0]
            if write.records.home:
                write.records.wait()
            else:
                if write.task is not None:
                    write.task.wait()
                self._store_now(write)
            self._writes.popleft()

    @property
    def pending_bytes(self) -> int:
        """Host bytes of records that are not written yet."""
        return sum(write.records.tensor.nbytes for write in tuple(self._writes))

    def _store_now(self, write: _Write) -> None:
        """Return once a write and those before it are stored."""
        if write.stored:
            return
        try:
            if self._worker is None:
                self._store(write)
                return
            write.task = self._worker.submit(partial(self._store, write))
            write.task.result()
        except OSError as error:
            raise WriteBackFailed(
                "changed rows could not be written to the slow tier; they are kept in memory: remove the cause and "
                "call flush()"
            ) from error

    def _store(self, last: _Write) -> None:
        """Store all writes that are not stored yet up to this one, the oldest first."""
        for write in tuple(self._writes):
            if not (write.stored or write.records.home):
                self._tier.evict(as_long(write.rows), write.records.wait())
                write.stored = True
            if write is last:
                return


class Numbers(NamedTuple):
    """Numbers of a planned batch on the device, int32 each.

    Attributes:
        slots: The slot of every id.
        fetch_slots, back_slots: The slots to fetch into, and those to write back.
        fetch_rows: The rows to fetch.
        back_rows: The rows to write back, if the device writes them.
        again: Indices of the last rows to fetch among those that the previous batch writes back.
        offsets: Start of each bag and end of the last one; empty: every bag has one id.
    """

    slots: Tensor
    fetch_slots: Tensor
    back_slots: Tensor
    fetch_rows: Tensor
    back_rows: Tensor
    again: Tensor
    offsets: Tensor


@dataclass
class Planned:
    """A planned batch, and its progress.

    Attributes:
        plan: The rows to write back and to fetch.
        offsets: Start of each bag and end of the last one, int32; empty: every bag has one id.
        changes: It will be trained.
        fetch_rows, fetch_slots: The plan's, reordered: first the rows that the slow tier had when `send` was called,
            last the rows that the previous batch writes back, which are still in staging on the device.
        early, last: Number of the first and of the last of these rows.
        before: Number of the previous batch, when `send` was called.
        sent: Its `Numbers`, being copied to the device; None: not yet.
        numbers: The same for the stream that the last `move` queued work on.
        rows_written_back, rows_fetched: Number of rows moved so far.
        rows_read: Number of rows to fetch that were read; those not fetched yet are in staging.
    """

    plan: Plan
    offsets: Int32s
    changes: bool
    fetch_rows: Int32s = field(init=False)
    fetch_slots: Int32s = field(init=False)
    early: int = 0
    last: int = 0
    before: int = -1
    sent: H2DCopy | None = None
    numbers: Numbers = field(init=False)
    rows_written_back: int = 0
    rows_fetched: int = 0
    rows_read: int = 0


class BatchMover:
    """Moves the rows that batches need through staging: changed rows out of a pool, then missing rows into it.

    Batches are sent and moved in the order of their plans, and at most one is sent ahead of the current one. `send` may
    run on a thread of its own; it touches no slot. Each of the `PLACES` staging buffers has room for `rows` records.

    If an error or interrupt ends `move` half-way, the same call continues it: counters in `Planned` are raised after
    the work is done, and repeating the work is harmless.
    """

    PLACES = 3
    """Staging buffers: one for the current batch, one for the batch sent ahead, one for write-backs."""

    def __init__(self, pool: SlotTable, *, tier: SlowTier, writer: Writer, transfer: Transfer, rows: int) -> None:
        self._pool = pool
        self._tier = tier
        self._writer = writer
        self._transfer = transfer
        self._entries = (FetchStaging(rows, tier, transfer), FetchStaging(rows, tier, transfer))
        self._exit = EvictStaging(rows, tier.layout, transfer)
        self._kernel_tier = tier if isinstance(tier, PinnedTier) and tier.by_kernel else None
        self._before: tuple[int, Int32s] = (-1, np.empty(0, np.int32))
        """Number of the last batch sent, and the rows that it writes back."""

    def send(self, planned: Planned) -> None:
        """Copy a batch's slot numbers, and the rows that the slow tier has by now, to the device.

        May be called on another thread, in the order of the plans. After an `OSError` `move` tries again.
        """
        self._sent(planned)
        entry = self._entries[planned.plan.batch % 2]
        self._add(planned, entry, min(planned.early, entry.rows) - planned.rows_read)

    def move(self, planned: Planned, traffic: CacheCounters) -> None:
        """Move the rows that a batch needs: changed ones out of their slots, then missing ones into theirs.

        Raises OSError where rows could not be read from the slow tier, WriteBackFailed where they could not be written.
        """
        plan, compute = planned.plan, self._transfer.follow()
        planned.numbers = numbers = Numbers(*self._sent(planned).take(compute))
        size, kept = planned.fetch_rows.size, None
        if numbers.again.numel() and planned.rows_fetched < size and self._exit.batch == planned.before:
            kept, size = self._exit.again(numbers.again), size - planned.last
        while planned.rows_written_back < plan.back_rows.size:
            start = time.perf_counter()
            chunk = slice(planned.rows_written_back, planned.rows_written_back + self._exit.rows)
            rows, slots, tier = plan.back_rows[chunk], numbers.back_slots[chunk], self._kernel_tier
            if tier is None:  # with a pinned tier the device writes rows back without host buffers
                self._writer.wait(plan.batch - _MOST_WAITING)
            read = self._pool.read(slots, self._exit.room(rows.size, compute))
            if tier is None:
                records = self._exit.send(read, compute)
            else:
                records = self._exit.scatter(read, tier, numbers.back_rows[chunk], compute)
            self._writer.write(rows, records, batch=plan.batch)
            planned.rows_written_back += rows.size
            traffic.rows_written_back += rows.size
            traffic.write_back_wait_s += time.perf_counter() - start
            if rows.size == plan.back_rows.size and tier is None:
                self._exit.batch = plan.batch
        entry, late = self._entries[plan.batch % 2], False
        while planned.rows_fetched < size:
            stop = min(size, planned.rows_fetched + entry.rows)
            missing = stop - planned.rows_read
            if missing:
                late = True
                after = int(plan.fetch_after.max())
                if stop > planned.early and self._writer.landed < after:
                    start = time.perf_counter()
                    self._writer.wait(after)
                    traffic.write_back_wait_s += time.perf_counter() - start
                start = time.perf_counter()
                self._add(planned, entry, missing)
                traffic.fetch_wait_s += time.perf_counter() - start
            count = stop - planned.rows_fetched
            self._pool.fill(numbers.fetch_slots[planned.rows_fetched : stop], entry.take(count, compute))
            entry.clear(compute)
            traffic.rows_fetched += count
            planned.rows_fetched = stop
        if kept is not None:
            self._pool.fill(numbers.fetch_slots[size:], kept)
            traffic.rows_fetched += planned.last
            planned.rows_fetched += planned.last
        traffic.late_batches += late
        if not plan.overflow:
            self._writer.moved(plan.batch)

    def _add(self, planned: Planned, entry: FetchStaging, count: int) -> None:
        """Read the next rows of a batch."""
        if count > 0:
            chunk = slice(planned.rows_read, planned.rows_read + count)
            place = planned.rows_read - planned.rows_fetched
            rows, sent = as_long(planned.fetch_rows[chunk]), Numbers(*self._sent(planned).tensors).fetch_rows[chunk]
            entry.add(rows, sent, place=place)
            if planned.changes:
                self._tier.take(rows, planned.plan.batch)
            planned.rows_read = chunk.stop

    def _sent(self, planned: Planned) -> H2DCopy:
        """Copy the numbers of a batch to the device, in the order of `Numbers`; only the first call copies."""
        if planned.sent is not None:
            return planned.sent
        plan = planned.plan
        has = plan.fetch_after <= self._writer.landed
        early = int(np.count_nonzero(has))
        planned.fetch_rows, planned.fetch_slots, again = plan.fetch_rows, plan.fetch_slots, plan.fetch_rows[:0]
        if early < has.size:
            kept, again = self._leaving_now(planned, has)
            order = np.argsort((2 * kept + ~(has | kept)).astype(np.int8), kind="stable")
            planned.fetch_rows, planned.fetch_slots = plan.fetch_rows[order], plan.fetch_slots[order]
        planned.early, planned.last, planned.before = early, again.size, self._before[0]
        back_rows = plan.back_rows[: plan.back_rows.size if self._kernel_tier else 0]
        planned.sent = self._transfer.pack(
            plan.slot_of_id, planned.fetch_slots, plan.back_slots, planned.fetch_rows, back_rows, again, planned.offsets
        )
        self._before = (plan.batch, plan.back_rows)
        return planned.sent

    def _leaving_now(self, planned: Planned, has: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Int32s]:
        """Mask of the rows to fetch that the previous batch writes back, and their indices among those, int32.

        A batch that is not trained has none, and waits for the tier: its rows may leave again without another
        write-back, and whoever reads them then waits for nothing.
        """
        (batch, gone), plan = self._before, planned.plan
        none = np.zeros_like(has), gone[:0]
        if not planned.changes or self._kernel_tier or not 0 < gone.size <= self._exit.rows:
            return none
        leaves = ~has & (plan.fetch_after == batch)
        if not leaves.any():
            return none
        order = np.argsort(gone)
        wanted = plan.fetch_rows[leaves]
        found = order[np.minimum(np.searchsorted(gone, wanted, sorter=order), gone.size - 1)]
        leaves[leaves] = same = gone[found] == wanted  # an overflow batch writes its rows back later
        return leaves, found[same].astype(np.int32)


def as_long(numbers: NDArray[Any]) -> Tensor:
    """As an int64 tensor on the host."""
    return torch.from_numpy(numbers.astype(np.int64))
