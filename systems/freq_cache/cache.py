"""One cache: the rows of some tables of one width in a slow tier, and slots for the hot ones on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.answers import Anatomy, Purpose, Rows, Tier, total_of
from systems.features import Group
from systems.freq_cache.mover import RowMover, as_long
from systems.freq_cache.overflow import Overflow
from systems.freq_cache.planner.announce_loops import outside
from systems.freq_cache.planner.planner import Ids, Plan, Planner
from systems.freq_cache.pool import RowPool
from systems.freq_cache.tiers.slow_tier import SlowTier
from systems.freq_cache.tiers.writer import Writer
from systems.freq_cache.traffic import Traffic
from systems.freq_cache.transfer import Arrival, Transfer


@dataclass(frozen=True)
class Bags:
    """The ids of one batch that a cache serves, and the bags they are in.

    Attributes:
        ids: The ids, feature after feature.
        offsets: Where bags begin, feature after feature, int64 `[features * batch + 1]`.
    """

    ids: Ids
    offsets: Tensor


@dataclass
class Planned:
    """A planned batch, with what was sent ahead of it.

    Attributes:
        plan: Which rows leave and enter.
        sent: On the device: the slot of every id, int32; bag offsets; the slots to fetch into and those to write back,
            int64.
        fetched: Records of the first rows to fetch, if they could be read when the batch was planned.
        rows_written_back, rows_fetched: How many of its rows have been moved.
    """

    plan: Plan
    sent: Arrival
    fetched: Arrival | None
    rows_written_back: int = 0
    rows_fetched: int = 0


class _InFlight:
    """A looked-up batch whose backward has yet to update its slots. Its autograd graph keeps it alive."""

    def __init__(self) -> None:
        self.arrived = False

    def arrive(self, gradient: Tensor) -> None:
        """A gradient came: the update of the slots follows within the same backward."""
        self.arrived = True


class Cache:
    """Keeps the slow tier and the slots of one group of tables consistent.

    `announce` and `plan` change only the planner, neither slots nor rows that have one: the planning thread may call
    them while another thread trains. Everything else belongs to the training thread. One batch is in flight at a time:
    until its backward has run, or its outputs are gone, a call that would move its rows is refused, because their
    update would be lost.

    Args:
        group: The tables, all of one width, pooling and type.
        planner: Over the rows of all tables, table after table.
        tier: The same rows.
        make_pool: Makes a pool; takes its number of slots.
        staging_rows: Records that may lie on the device on their way in, and as many on their way out.
        writer: Of the tier.
        transfer: To and from the device.
        remedy: Takes a number of slots and says what to give for it, to refuse a batch with more distinct rows than
            slots. None: such a batch is looked up in a pool of its own.
    """

    def __init__(
        self,
        group: Group,
        *,
        planner: Planner,
        tier: SlowTier,
        make_pool: Callable[[int], RowPool],
        staging_rows: int,
        writer: Writer,
        transfer: Transfer,
        remedy: Callable[[int], str] | None,
    ) -> None:
        sizes = np.array([table.num_embeddings for table in group.tables], np.int64)
        self._starts = sizes.cumsum() - sizes
        order = np.array(group.table_of_feature)
        self._feature_starts, self._feature_sizes = self._starts[order], sizes[order]
        self._tables = {table.name: table for table in group.tables}
        self.group = group
        self.planner = planner
        self.tier = tier
        self.writer = writer
        self.pool = make_pool(planner.slots)
        self.staging_rows = staging_rows
        self._transfer = transfer
        self._mover = RowMover(tier, transfer)
        self._overflow = Overflow(self.pool, make_pool=make_pool, mover=self._mover, writer=writer, remedy=remedy)
        self._in_flight: Callable[[], _InFlight | None] = lambda: None
        self._warm = False
        self.traffic = Traffic()
        self.count_by_table = False

    def bags(self, part: KeyedJaggedTensor) -> Bags:
        """The ids and bags of a batch for this cache.

        Raises:
            ValueError: the features lie on a device.
        """
        values = part.values()
        if values.device.type != "cpu":
            raise ValueError("the cache plans on the host: pass the features on the CPU")
        offsets = part.offsets().long()
        ends = (
            offsets[part.stride() :: part.stride()].numpy() if part.stride() else np.zeros(len(part.keys()), np.int64)
        )
        return Bags(Ids(values.long().contiguous().numpy(), ends, self._feature_starts), offsets)

    def check(self, bags: Bags) -> None:
        """Refuse ids that are outside their table.

        Raises:
            IndexError: there is one; the message names feature, id and table.
        """
        bad = outside(bags.ids.values, bags.ids.ends, self._feature_sizes)
        if bad >= 0:
            feature = int(np.searchsorted(bags.ids.ends, bad, side="right"))
            table = self.group.tables[self.group.table_of_feature[feature]]
            raise IndexError(
                f"feature {self.group.features[feature]}: id {bags.ids.values[bad]} is outside table {table.name} of "
                f"{table.num_embeddings} rows"
            )

    def warm_up(self) -> None:
        """Fill the cache with the rows that its policy thinks best. Only the first call does anything."""
        if self._warm:
            return
        self._warm = True
        rows, slots = self.planner.warm_up()
        order = np.argsort(rows)  # a file is read from front to back
        self._mover.fill(self.pool, slots[order], rows[order])

    def announce(self, bags: Bags, *, changes: bool) -> None:
        """Tell the planner of a coming batch whose ids were checked. `changes`: it will be trained."""
        self.planner.announce(bags.ids, changes=changes)

    def plan(self, bags: Bags) -> Planned:
        """Plan the batch announced longest ago, and send ahead what can be sent."""
        plan = self.planner.plan()
        slots = torch.from_numpy(plan.slot_of_id)
        sent = self._transfer.to_device(slots, bags.offsets, as_long(plan.fetch_slots), as_long(plan.back_slots))
        fetched = None
        if plan.fetch_rows.size and self.writer.landed(plan.fetch_after):
            with suppress(OSError):  # `move` reads the rows again, and raises what is wrong
                fetched = self._mover.fetch(plan.fetch_rows[: self.staging_rows])
        return Planned(plan, sent, fetched)

    def move(self, planned: Planned) -> None:
        """Move the rows that a batch needs: changed ones out of the cache, then missing ones into it.

        Batches are moved in the order of their plans. After an error the same call goes on where it stopped.

        Raises:
            OSError: rows could not be read from the slow tier.
            WriteBackFailed: rows could not be written to it.
        """
        plan = planned.plan
        _, _, fetch_slots, back_slots = planned.sent.take()
        while planned.rows_written_back < plan.back_rows.size:
            chunk = slice(planned.rows_written_back, planned.rows_written_back + self.staging_rows)
            rows = as_long(plan.back_rows[chunk])
            records = self._transfer.to_host(self.pool.read(back_slots[chunk]))
            planned.rows_written_back += rows.numel()
            self.traffic.rows_written_back += rows.numel()
            self.writer.write(rows, records, batch=plan.batch)
        while planned.rows_fetched < plan.fetch_rows.size:
            start = planned.rows_fetched
            arriving, planned.fetched = planned.fetched, None
            if arriving is None:
                self.writer.wait(plan.fetch_after)
                arriving = self._mover.fetch(plan.fetch_rows[start : start + self.staging_rows])
            (records_in,) = arriving.take()
            stop = start + records_in.shape[0]
            self.pool.fill(fetch_slots[start:stop], records_in)
            self.traffic.rows_fetched += records_in.shape[0]
            planned.rows_fetched = stop
        if not plan.overflow:
            self.writer.moved(plan.batch)

    def look_up(self, planned: Planned, weights: Tensor | None) -> Tensor:
        """Pool the rows of a batch that was moved, fp32 `[batch, features * dim]` on the device.

        Raises:
            WorkingSetTooLarge: the batch has more distinct rows than slots and may not bypass the cache.
        """
        plan = planned.plan
        slots, offsets = planned.sent.take()[:2]
        self.traffic.count(plan)
        if self.count_by_table:
            self.traffic.count_by_table(plan, list(self._tables), self._starts)
        pool = self.pool
        if plan.overflow:
            pool = self._overflow.look_up(plan, self.traffic)
            slots = self._transfer.to_device(torch.from_numpy(plan.inverse)).take()[0]
        if weights is not None:
            weights = weights.to(slots.device, non_blocking=True)
        pooled = pool.look_up(slots, offsets, weights)
        if pooled.requires_grad:
            in_flight = _InFlight()
            pooled.register_hook(in_flight.arrive)
            self._in_flight = weakref.ref(in_flight)
        return pooled

    def finish(self) -> None:
        """Finish the last batch: where it bypassed the cache, take its rows home.

        Raises:
            RuntimeError: it still waits for its backward.
        """
        in_flight = self._in_flight()
        if in_flight is not None and not in_flight.arrived:
            raise RuntimeError(
                "the batch looked up before this call still waits for its backward: call backward first, "
                "or look up under torch.no_grad() what is not trained on"
            )
        self._overflow.finish(self.traffic)

    def flush(self) -> None:
        """Write every changed row back; the slots stay valid. No batch may be announced.

        Where the slow tier rounds rows, the slots are given what it now has: row and slot are the same after it.
        """
        self.finish()
        self.writer.wait()
        rows, slots = self.planner.changed()
        try:
            for start in range(0, rows.size, self._mover.chunk_rows):
                chunk = slice(start, start + self._mover.chunk_rows)
                held = self._mover.on_device(slots[chunk])
                records = self.pool.read(held)
                self.tier.write(as_long(rows[chunk]), self._transfer.to_host(records).wait())
                if self.pool.rounds:
                    self.pool.fill(held, records)
        except BaseException:
            self.planner.change(slots)  # written or not, they will be written again
            raise

    def load(self, table: str, start: int, records: Tensor) -> None:
        """Overwrite rows of a table with records, `[n, width]`, in the slow tier and in the slots that hold them.

        No batch may be announced.
        """
        self.finish()
        self.writer.wait()
        first = self.start_of(table) + start
        stop = first + records.shape[0]
        self.tier.write(torch.arange(first, stop), records)
        held, slots = self.planner.held(first, stop)
        self._mover.fill(self.pool, slots, held)

    def read(self, table: str, ids: Tensor) -> Rows:
        """Copies of rows of a table, int64 `[n]`, as the slow tier has them.

        Raises:
            IndexError: an id is outside the table.
        """
        rows = self._tables[table].num_embeddings
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:  # else a neighbour's rows would be read
            raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} are not all in table {table} of {rows}")
        records = self.tier.layout.empty(ids.numel())
        self.tier.read(ids + self.start_of(table), records)
        return self.tier.layout.unpack(records)

    @property
    def pools(self) -> list[RowPool]:
        """The slots, and the pool for batches larger than the cache, once there was one."""
        return [self.pool] if self._overflow.pool is None else [self.pool, self._overflow.pool]

    @property
    def tables(self) -> Mapping[str, EmbeddingBagConfig]:
        """The tables by name, in the order of their rows."""
        return self._tables

    def start_of(self, table: str) -> int:
        """The row at which a table starts."""
        return int(self._starts[list(self._tables).index(table)])

    def set_hyper_parameters(self, values: Mapping[str, float]) -> None:
        """Train with other values from the next lookup on."""
        for pool in self.pools:
            pool.set_hyper_parameters(values)

    def memory(self) -> Anatomy:
        """Bytes by tier and purpose, the slot ids of a batch excepted."""
        rows, state = self.pool.nbytes
        overflow = sum(sum(pool.nbytes) for pool in self.pools[1:])
        own = {
            (Tier.DEVICE, Purpose.ROWS): rows,
            (Tier.DEVICE, Purpose.STATE): state,
            (Tier.DEVICE, Purpose.STAGING): overflow + 2 * self.staging_rows * self.tier.layout.record_bytes,
            (Tier.HOST, Purpose.INDEX): self.planner.index_bytes,
            (Tier.HOST, Purpose.STAGING): self.planner.window_bytes + self.writer.pending_bytes,
        }
        return total_of([own, self.tier.memory()])
