"""One cache: the rows of some tables of one width in a slow tier, and slots for the hot ones on the device."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.answers import MemoryBreakdown, MemoryUse, Rows, Tier, total_of
from systems.contract import WorkingSetTooLarge
from systems.features import Group
from systems.freq_cache.cache.mover import BatchMover, Planned, WriteBackFailed, Writer, as_long
from systems.freq_cache.cache.plan import BackwardGroup, CacheCounters, Distinct, Ids, Int32s, OutsideTable, Plan
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.cache.staging import Transfer
from systems.freq_cache.tiers.slow_tier import SlowTier
from systems.threads import Worker

_CHUNK_BYTES = 8 << 20
"""Bytes of records per chunk when the cache is filled or flushed."""


class Cache:
    """Keeps the slow tier and the slots of one group of tables consistent.

    `choose_first_rows`, `announce`, `plan` and `withdraw` change only the planner, neither slots nor rows: the planning
    thread may call them while another thread trains. If one of them ends half-way, row locations are lost. Only the
    training thread calls everything else, `mover.send` excepted; these methods may be called again if they end
    half-way. The caller of a method that moves rows makes sure that no lookup of these rows has a pending backward,
    whose update would be lost.

    Args:
        group: The tables, all of one width, pooling and type.
        planner, tier: Both have the rows of all tables, table after table.
        make_pool: Makes a pool of a given number of slots.
        staging_rows: Capacity of each staging buffer on the device, in records.
        writing: The thread that writes rows back; None: the thread that moves them.
        transfer: Copies to and from the device.
        remedy: Text that says how to get a given number of slots; a batch with more distinct rows than slots is refused
            with it. None: such a batch is looked up in a pool of its own.
        lookups_per_backward: Batches that may be in flight at the same time.

    Attributes:
        overflow: The plan of the overflow batch that was looked up and is not finished yet.
        overflow_pool: The pool of overflow batches, once one was needed.
    """

    def __init__(
        self,
        group: Group,
        *,
        planner: Planner,
        tier: SlowTier,
        make_pool: Callable[[int], SlotTable],
        staging_rows: int,
        writing: Worker | None,
        transfer: Transfer,
        remedy: Callable[[int], str] | None,
        lookups_per_backward: int = 1,
    ) -> None:
        sizes = np.array([table.num_embeddings for table in group.tables], np.int64)
        self._starts = sizes.cumsum() - sizes
        order = np.array(group.table_of_feature)
        self._feature_starts, self._feature_sizes = self._starts[order], sizes[order]
        self.tables: Mapping[str, EmbeddingBagConfig] = {table.name: table for table in group.tables}
        self.group = group
        self.planner = planner
        self.tier = tier
        self.writer = Writer(tier, writing)
        self.pool = make_pool(planner.slots)
        self._hyper: Mapping[str, float] = {}
        self._staging_bytes = BatchMover.PLACES * staging_rows * tier.layout.record_bytes
        self.mover = BatchMover(self.pool, tier=tier, writer=self.writer, transfer=transfer, rows=staging_rows)
        self._transfer = transfer
        self._make_pool, self._remedy = make_pool, remedy
        self._chunk_rows = max(1, _CHUNK_BYTES // tier.layout.record_bytes)
        self.overflow: Plan | None = None
        self.overflow_pool: SlotTable | None = None
        self._trained = False
        """Whether backward changes the rows of the overflow batch."""
        self._together = BackwardGroup(lookups_per_backward)
        self._first: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        """Slots and rows that the planner assigned at the start and that are not copied yet."""
        self._torn: tuple[int, int] | None = None
        """Range of rows `(first, stop)` that are being overwritten, or whose overwriting failed."""
        self.traffic = CacheCounters()
        self.count_by_table = False

    def distinct(self, part: KeyedJaggedTensor) -> tuple[Ids, Distinct]:
        """The ids of a batch and their distinct rows; the planner's state does not change.

        Raises:
            ValueError: as `check_bags`.
            IndexError: an id is outside its table; the message names feature, id and table.
        """
        ids = Ids.of(part, self._feature_starts)
        try:
            return ids, self.planner.distinct(ids, self._feature_sizes)
        except OutsideTable as error:
            feature = int(np.searchsorted(ids.ends, error.at, side="right"))
            table = self.group.tables[self.group.table_of_feature[feature]]
            raise IndexError(
                f"feature {self.group.features[feature]}: id {ids.values[error.at]} is outside table {table.name} "
                f"of {table.num_embeddings} rows"
            ) from None

    def choose_first_rows(self) -> None:
        """Let the planner fill the empty cache with the rows that its policy ranks highest; no row is copied yet."""
        rows, slots = self.planner.warm_up()
        order = np.argsort(rows)  # a file is read from front to back
        self._first = slots[order], rows[order]

    def fill(self) -> None:
        """Copy the rows of `choose_first_rows` into their slots, and the next best to RAM, if that is still to do."""
        if self._first is not None:
            self._transfer.follow()
            self._fetch(self.pool, *self._first)
            if self.tier.ram_rows:
                best = self.planner.best(self.planner.slots + self.tier.ram_rows)
                self.tier.keep(as_long(best[self.planner.slots :]))
            self._first = None

    def announce(self, distinct: Distinct, *, changes: bool) -> None:
        """Announce a coming batch by its distinct rows to the planner. `changes`: it will be trained."""
        self.planner.announce(self._together.announced(distinct), changes=changes)

    def plan(self, ids: Ids, *, changes: bool) -> Planned:
        """Plan the oldest announced batch. `changes`: as announced."""
        return Planned(self._together.planned(self.planner.plan()), ids.offsets, changes)

    def withdraw(self) -> None:
        """Make the planner forget the announced batches that are not planned."""
        self.planner.withdraw()
        self._together.withdrawn()

    def check_room(self, plan: Plan, *, alone: bool) -> None:
        """Check before any cache looks a batch up that this one may. `alone`: no other batch waits for its backward.

        Raises:
            WorkingSetTooLarge: the batch has more distinct rows than slots and may not bypass the cache.
            RuntimeError: as `check_whole`.
        """
        self.check_whole()
        if not plan.overflow or (alone and self._remedy is None):
            return
        self.writer.moved(plan.batch)
        self._together.refused(plan.batch)
        width, slots = self.tier.layout.dim, f"{self.pool.slots:,}"
        if not alone or self._remedy is None or plan.unique_ids <= self.pool.slots:
            raise WorkingSetTooLarge(
                f"the batches that share a backward have more distinct rows of width {width} than the cache has "
                f"slots, {slots}: give it more, or call backward in between"
            )
        raise WorkingSetTooLarge(
            f"one batch has {plan.unique_ids:,} distinct rows of width {width}, the budget holds {slots}: "
            f"{self._remedy(plan.unique_ids)}"
        )

    def look_up(self, planned: Planned, weights: Tensor | None) -> Tensor:
        """Pool the rows of a batch that was moved, fp32 `[batch, features * dim]`. `weights`: of its ids, `[n]`."""
        plan = planned.plan
        slots, offsets = planned.numbers.slots, planned.numbers.offsets
        pool = self.pool
        if plan.overflow:
            start = time.perf_counter()
            pool = self._gather(plan.rows, plan.slots)
            self.traffic.fetch_wait_s += time.perf_counter() - start
            pool.steps = self.pool.steps
            self.overflow, self._trained = plan, torch.is_grad_enabled()
            self.traffic.rows_fetched += int(np.count_nonzero(plan.slots < 0))
            pool.set_hyper_parameters(self._hyper)
            slots = self._transfer.to_device(torch.from_numpy(plan.inverse))
        self.traffic.count(plan)
        if self.count_by_table:
            self.traffic.count_by_table(plan, list(self.tables), self._starts)
        pooled = pool.look_up(slots, offsets if offsets.numel() else None, weights)
        self._together.looked_up(plan.batch)
        return pooled

    def infer(self, part: KeyedJaggedTensor) -> Tensor:
        """As `look_up`, for a batch that is not trained: no row moves, nothing is counted.

        No batch may be planned, and no overflow batch may be unfinished.

        Raises: as `distinct`; OSError, WriteBackFailed: the slow tier failed.
        """
        self.check_whole()
        self._transfer.follow()
        to_device, (ids, distinct) = self._transfer.to_device, self.distinct(part)
        self.fill()
        pool = self._gather(distinct.rows, self.planner.slots_of(distinct.rows))
        if self._remedy is not None:
            self.overflow_pool = None  # a budget has room for it in this call alone
        slots, offsets = torch.from_numpy(distinct.inverse), torch.from_numpy(ids.offsets)
        return pool.look_up(to_device(slots), to_device(offsets) if ids.offsets.size else None, part.weights_or_none())

    def flush(self) -> None:
        """Write every changed row back; the slots stay valid. No batch may be announced.

        Where the slow tier rounds rows, slots are overwritten with the rounded rows, so that both agree afterwards.
        """
        self.check_whole()
        self._transfer.follow()
        self.finish()
        self.writer.wait()
        rows, slots = self.planner.changed()
        for start in range(0, rows.size, self._chunk_rows):
            chunk = slice(start, start + self._chunk_rows)
            held = self._on_device(slots[chunk])
            records = self.pool.records(held)
            self.tier.write(as_long(rows[chunk]), self._transfer.to_host(records).wait())
            if self.pool.rounds:
                self.pool.fill(held, records)
            self.planner.written(slots[chunk])

    def load(self, table: str, start: int, records: Tensor) -> None:
        """Overwrite rows of a table with records, `[n, width]`, in tier and slots. No batch may be announced.

        After an error the call may be repeated: see `overwriting`.
        """
        self._transfer.follow()
        self.finish()
        self.writer.wait()
        first = self.start_of(table) + start
        stop = first + records.shape[0]
        with self.overwriting(first, stop):
            self.tier.write(torch.arange(first, stop), records)
            held, slots = self.planner.held(first, stop)
            self._fetch(self.pool, slots, held)
            self.planner.written(slots)

    @contextmanager
    def overwriting(self, first: int, stop: int) -> Iterator[None]:
        """Guard code that overwrites rows: after an error, lookups, flushes and reads fail until it is repeated."""
        before = self._torn or (first, stop)
        self._torn = min(first, before[0]), max(stop, before[1])
        yield
        self._torn = None if first <= before[0] and before[1] <= stop else before

    def check_whole(self) -> None:
        """Check that no rows are partly overwritten.

        Raises:
            RuntimeError: loading rows failed half-way.
        """
        if self._torn is not None:
            raise RuntimeError(
                "rows were being loaded when that failed, and some are the old ones and some the new: load them again, "
                "or build another collection"
            )

    def read(self, table: str, ids: Tensor) -> Rows:
        """Copies of rows of a table, int64 `[n]`, each within it, as the slow tier has them."""
        records = self.tier.layout.empty(ids.numel())
        self.tier.read(ids + self.start_of(table), records)
        return self.tier.layout.unpack(records)

    def start_of(self, table: str) -> int:
        """The row at which a table starts."""
        return int(self._starts[list(self.tables).index(table)])

    def take_hyper_parameters(self, values: Mapping[str, float]) -> None:
        """Have backward update rows by these hyper-parameters from the next lookup on."""
        if values != self._hyper:
            self.pool.set_hyper_parameters(values)
            self._hyper = values  # set last: an interrupt loses none

    def memory(self) -> MemoryBreakdown:
        """Bytes by tier and purpose, the slot ids of a batch excepted."""
        rows, state = self.pool.nbytes
        apart = 0 if self.overflow_pool is None else sum(self.overflow_pool.nbytes)
        own = {
            (Tier.DEVICE, MemoryUse.ROWS): rows,
            (Tier.DEVICE, MemoryUse.STATE): state,
            (Tier.DEVICE, MemoryUse.STAGING): apart + self._staging_bytes,
            (Tier.HOST, MemoryUse.INDEX): self.planner.index_bytes,
            (Tier.HOST, MemoryUse.STAGING): self.planner.window_bytes + self.writer.pending_bytes,
        }
        return total_of([own, self.tier.memory()])

    def _fetch(self, pool: SlotTable, slots: NDArray[Any], rows: Int32s) -> None:
        """Overwrite slots `[n]` of a pool with rows of the slow tier, a chunk at a time."""
        for start in range(0, rows.size, self._chunk_rows):
            chunk = slice(start, start + self._chunk_rows)
            wanted = as_long(rows[chunk])
            records = self.tier.layout.empty(wanted.numel(), pin=self._transfer.pins)
            self.tier.read(wanted, records)
            pool.fill(self._on_device(slots[chunk]), self._transfer.to_device(records))

    def _on_device(self, numbers: NDArray[Any]) -> Tensor:
        """Row or slot numbers as int64 on the device."""
        return self._transfer.to_device(as_long(numbers))

    # Overflow batches, one at a time

    def _gather(self, rows: Int32s, slots: Int32s) -> SlotTable:
        """A pool in which row `i` of distinct rows is in slot `i`. `slots`: those that they have, below 0 for none."""
        if self.overflow_pool is None or self.overflow_pool.slots < rows.size:
            self.overflow_pool = None  # frees the smaller pool before the larger one is made
            self.overflow_pool = self._make_pool(1 << (rows.size - 1).bit_length())
        held, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self.overflow_pool.copy(self._on_device(held), self.pool, self._on_device(slots[held]))
        self.writer.wait()  # for all rows that earlier batches write back
        self._fetch(self.overflow_pool, absent, rows[absent])
        return self.overflow_pool

    def finish(self) -> None:
        """Write back the rows of the last overflow batch: to their slots if they have some, else to the slow tier.

        After an error the call may be repeated.

        Raises:
            WriteBackFailed: see `Writer.wait`.
        """
        plan = self.overflow
        if plan is None or self.overflow_pool is None:
            return
        self._transfer.follow()
        if self._trained:
            start = time.perf_counter()
            held, absent = np.flatnonzero(plan.slots >= 0), np.flatnonzero(plan.slots < 0)
            self.pool.copy(self._on_device(plan.slots[held]), self.overflow_pool, self._on_device(held))
            leaving = self._transfer.to_host(self.overflow_pool.records(self._on_device(absent)))
            self.pool.steps = self.overflow_pool.steps
            try:
                self.writer.write(plan.rows[absent], leaving, batch=plan.batch)
            except WriteBackFailed:  # the writer keeps the rows
                self.overflow = None
                self.writer.moved(plan.batch)
                raise
            self.traffic.rows_written_back += absent.size
            self.traffic.write_back_wait_s += time.perf_counter() - start
        self.overflow = None
        self.writer.moved(plan.batch)
