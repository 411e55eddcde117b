"""One cache: the rows of some tables of one width in a slow tier, and slots for the hot ones on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import Rows, WorkingSetTooLarge
from systems.features import Group
from systems.freq_cache.direct import DirectMoves
from systems.freq_cache.planner import loops
from systems.freq_cache.planner.planner import Ids, Plan, Planner
from systems.freq_cache.pool import RowPool
from systems.freq_cache.tiers.host import HostTier
from systems.freq_cache.tiers.pinned import PinnedTier
from systems.freq_cache.tiers.slow_tier import SlowTier
from systems.freq_cache.tiers.writer import Writer
from systems.freq_cache.transfer import Arrival, Transfer

_CHUNK_ROWS = 1 << 18
"""Rows moved at a time where many are: when the cache is filled, flushed, loaded or read."""


@dataclass
class Traffic:
    """Sums since the last reset."""

    steps: int = 0
    lookups: int = 0
    unique_ids: int = 0
    unique_misses: int = 0
    lookup_misses: int = 0
    rows_fetched: int = 0
    rows_written_back: int = 0
    overflow_batches: int = 0
    by_table: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bags:
    """What one batch asks of a cache: ids, and the bags they are in.

    Attributes:
        ids: The ids.
        offsets: Where bags begin, feature after feature, int64 `[features * batch + 1]`.
        weights: Of every id, fp32 `[n]`, or None.
    """

    ids: Ids
    offsets: Tensor
    weights: Tensor | None


@dataclass
class Prepared:
    """A planned batch with all that was sent ahead of it.

    Attributes:
        plan: What is to move.
        sent: On the device: slots of ids int32 and bag offsets; unless rows move directly also the slots to fetch into
            and those to write back, int64.
        fetched: Records of the first rows to fetch, if they could be read by then.
        rows_backed, rows_fetched: How far its rows have been moved.
    """

    plan: Plan
    sent: Arrival
    fetched: Arrival | None
    rows_backed: int = 0
    rows_fetched: int = 0


@dataclass
class _Bypass:
    """A batch looked up outside the cache, whose updated rows have yet to go home."""

    pool: RowPool
    plan: Plan
    changes: bool


class _InFlight:
    """A looked-up batch whose backward has yet to update its slots. Its autograd graph keeps it alive."""

    def __init__(self) -> None:
        self.arrived = False

    def arrive(self, gradient: Tensor) -> None:
        """A gradient came: the fused update follows within the same backward."""
        self.arrived = True


class Cache:
    """Keeps the slow tier and the slots of one group of tables consistent.

    `enter` and `prepare` plan and touch neither the slots nor rows that have one; one thread may call them while
    another trains. The rest belongs to the training thread. One batch is in flight at a time: until its backward has
    run, or its outputs are gone, whatever would move its rows is refused, or its update would be lost.

    Args:
        group: The tables, all of one width, pooling and type.
        planner: Over the rows of all tables, table after table.
        tier: The same rows.
        make_pool: Makes a pool of so many slots.
        staging_rows: Records that may lie on the device on their way in, and as many on their way out.
        writer: Of the tier.
        transfer: To and from the device.
        remedy: Says what gives so many slots, for the refusal of a batch with more distinct rows than slots. None: such
            a batch is looked up in a pool of its own.
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
        self._start_of_table = {t.name: int(s) for t, s in zip(group.tables, self._starts, strict=True)}
        self._tables = {t.name: t for t in group.tables}
        order = np.array(group.table_of_feature)
        self._feature_starts, self._feature_sizes = self._starts[order], sizes[order]
        self.group = group
        self.planner = planner
        self.tier = tier
        self.writer = writer
        self._make_pool = make_pool
        self.pool = make_pool(planner.slots)
        self.staging_rows = staging_rows
        self._transfer = transfer
        in_place = isinstance(tier, HostTier) and not isinstance(tier, PinnedTier) and not transfer.pins
        self._direct = DirectMoves(cast(HostTier, tier), self.pool) if in_place else None
        self._remedy = remedy
        self._overflow: RowPool | None = None
        self._bypass: _Bypass | None = None
        self._in_flight: Callable[[], _InFlight | None] = lambda: None
        self._warm = False
        self.traffic = Traffic()
        self.count_by_table = False

    def bags(self, part: KeyedJaggedTensor) -> Bags:
        """What a batch asks of this cache."""
        values = part.values()
        if values.device.type != "cpu":
            raise ValueError("the cache plans on the host: pass the features on the CPU")
        offsets = part.offsets().long()
        ends = (
            offsets[part.stride() :: part.stride()].numpy() if part.stride() else np.zeros(len(part.keys()), np.int64)
        )
        ids = Ids(values.long().contiguous().numpy(), ends, self._feature_starts)
        return Bags(ids, offsets, part.weights_or_none())

    def check(self, bags: Bags) -> None:
        """Refuse ids that are outside their table.

        Raises:
            IndexError: there is one; the message names feature, id and table.
        """
        bad = loops.outside(bags.ids.values, bags.ids.ends, self._feature_sizes)
        if bad >= 0:
            feature = int(np.searchsorted(bags.ids.ends, bad, side="right"))
            table = self.group.tables[self.group.table_of_feature[feature]]
            raise IndexError(
                f"feature {self.group.features[feature]}: id {bags.ids.values[bad]} is outside table {table.name} of "
                f"{table.num_embeddings} rows"
            )

    def enter(self, bags: Bags, *, changes: bool) -> None:
        """Announce a batch whose ids were checked. `changes`: it will be trained."""
        self.planner.announce(bags.ids, changes=changes)

    def prepare(self, bags: Bags) -> Prepared:
        """Plan the batch entered longest ago, and send ahead what can be sent."""
        plan = self.planner.plan()
        slots = torch.from_numpy(plan.slot_of_id)
        if self._direct is not None:
            return Prepared(plan, self._transfer.to_device(slots, bags.offsets), None)
        sent = self._transfer.to_device(slots, bags.offsets, _long(plan.fetch_slots), _long(plan.back_slots))
        fetched = None
        if plan.fetch_rows.size and self.writer.landed(plan.fetch_after):
            with suppress(OSError):  # read again when they are needed, and heard of then
                fetched = self._fetch(_long(plan.fetch_rows[: self.staging_rows]))
        return Prepared(plan, sent, fetched)

    def warm_up(self) -> None:
        """Fill the cache with the rows that its policy thinks best, before the first batch is entered."""
        if self._warm:
            return
        self._warm = True
        rows, slots = self.planner.warm_up()
        order = np.argsort(rows)  # a file is read from front to back
        rows, slots = rows[order], slots[order]
        for part in range(0, rows.size, _CHUNK_ROWS):
            self._fill(slots[part : part + _CHUNK_ROWS], rows[part : part + _CHUNK_ROWS])

    def apply(self, prepared: Prepared) -> None:
        """Move the rows that a batch needs: out of the cache, and into it. Batches in the order of their plans.

        If it fails it may be called again, and goes on where it stopped.

        Raises:
            OSError: rows could not be read from the slow tier.
            WriteBackFailed: rows could not be written to it.
        """
        plan = prepared.plan
        if self._direct is not None:
            self.writer.wait(plan.fetch_after)  # an overflow batch writes its rows back beside training
            self._direct.move(plan)
            self.traffic.rows_fetched += plan.fetch_rows.size
            self.traffic.rows_written_back += plan.back_rows.size
        else:
            self._move(prepared)
        if not plan.overflow:
            self.writer.executed(plan.batch)

    def _move(self, prepared: Prepared) -> None:
        plan = prepared.plan
        _, _, fetch_slots, back_slots = prepared.sent.take()
        while prepared.rows_backed < plan.back_rows.size:
            chunk = slice(prepared.rows_backed, prepared.rows_backed + self.staging_rows)
            rows = _long(plan.back_rows[chunk])
            records = self._transfer.to_host(self.pool.read(back_slots[chunk]))
            prepared.rows_backed += rows.numel()
            self.traffic.rows_written_back += rows.numel()
            self.writer.write(rows, records, batch=plan.batch)
        while prepared.rows_fetched < plan.fetch_rows.size:
            ahead, prepared.fetched = prepared.fetched, None
            if ahead is None:
                self.writer.wait(plan.fetch_after)
                chunk = slice(prepared.rows_fetched, prepared.rows_fetched + self.staging_rows)
                ahead = self._fetch(_long(plan.fetch_rows[chunk]))
            (fetched,) = ahead.take()
            stop = prepared.rows_fetched + fetched.shape[0]
            self.pool.fill(fetch_slots[prepared.rows_fetched : stop], fetched)
            self.traffic.rows_fetched += fetched.shape[0]
            prepared.rows_fetched = stop

    def look_up(self, prepared: Prepared, weights: Tensor | None) -> Tensor:
        """Pool the rows of a batch, fp32 `[batch, features * dim]` on the device.

        Raises:
            WorkingSetTooLarge: the batch has more distinct rows than slots and may not overflow.
        """
        plan = prepared.plan
        slots, offsets = prepared.sent.take()[:2]
        self._count(prepared)
        pool = self.pool
        if plan.overflow:
            pool = self._fill_overflow(plan)
            slots = self._transfer.to_device(torch.from_numpy(plan.inverse)).take()[0]
        if weights is not None:
            weights = weights.to(slots.device, non_blocking=True)
        pooled = pool.look_up(slots, offsets, weights)
        if pooled.requires_grad:
            in_flight = _InFlight()
            pooled.register_hook(in_flight.arrive)
            self._in_flight = weakref.ref(in_flight)
        return pooled

    def settle(self) -> None:
        """Take the rows of a bypassed batch home: to their slot if they have one, else to the slow tier.

        Raises:
            RuntimeError: a batch is in flight.
        """
        in_flight = self._in_flight()
        if in_flight is not None and not in_flight.arrived:
            raise RuntimeError(
                "the batch looked up before this call still waits for its backward: call backward first, "
                "or look up under torch.no_grad() what is not trained on"
            )
        if self._bypass is None:
            return
        bypass, self._bypass = self._bypass, None
        plan = bypass.plan
        if bypass.changes:
            held, absent = np.flatnonzero(plan.slots >= 0), np.flatnonzero(plan.slots < 0)
            if held.size:
                where, to = self._transfer.to_device(_long(held), _long(plan.slots[held])).take()
                self.pool.fill(to, bypass.pool.read(where))
            if absent.size:
                where = self._transfer.to_device(_long(absent)).take()[0]
                records = self._transfer.to_host(bypass.pool.read(where))
                self.writer.write(_long(plan.rows[absent]), records, batch=plan.batch)
            self.pool.steps = bypass.pool.steps
            self.traffic.rows_written_back += absent.size
        self.writer.executed(plan.batch)

    def flush(self) -> None:
        """Write every changed row back; the slots stay valid. No batch may be announced."""
        self.settle()
        self.writer.wait()
        rows, slots = self.planner.changed()
        try:
            for part in range(0, rows.size, _CHUNK_ROWS):
                chunk = slice(part, part + _CHUNK_ROWS)
                where = self._transfer.to_device(_long(slots[chunk])).take()[0]
                records = self._transfer.to_host(self.pool.read(where)).wait()
                self.tier.write(_long(rows[chunk]), records)
        except BaseException:
            self.planner.change(slots)  # written or not, they will be written again
            raise

    def load(self, table: str, start: int, rows: Rows) -> None:
        """Overwrite rows of a table, in the slow tier and in any slot that holds them. No batch may be announced."""
        self.load_records(table, start, self.tier.layout.pack(rows))

    def load_records(self, table: str, start: int, records: Tensor) -> None:
        """The same with rows as records, `[n, width]`."""
        self.settle()
        self.writer.wait()
        first = self._start_of_table[table] + start
        count = records.shape[0]
        self.tier.write(torch.arange(first, first + count), records)
        held, slots = self.planner.held(first, first + count)
        if held.size:
            self._fill(slots, held)

    def read(self, table: str, ids: Tensor) -> Rows:
        """Copies of rows of a table, as the slow tier has them."""
        rows = self._tables[table].num_embeddings
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:  # else a neighbour's rows would be read
            raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} are not all in table {table} of {rows}")
        records = self.tier.layout.empty(ids.numel())
        self.tier.read(ids + self._start_of_table[table], records)
        return self.tier.layout.unpack(records)

    @property
    def pools(self) -> list[RowPool]:
        """The slots, and the pool for batches larger than the cache, once there was one."""
        return [self.pool] if self._overflow is None else [self.pool, self._overflow]

    @property
    def tables(self) -> list[EmbeddingBagConfig]:
        """The tables, in the order of their rows."""
        return list(self._tables.values())

    def start_of(self, table: str) -> int:
        """The row at which a table starts."""
        return self._start_of_table[table]

    def _fetch(self, rows: Tensor) -> Arrival:
        """Send records of rows, int64 `[n]`, to the device."""
        if isinstance(self.tier, PinnedTier):
            return self._transfer.gather(self.tier.on_device, rows)
        return self._transfer.to_device(self._read(rows))

    def _read(self, rows: Tensor) -> Tensor:
        records = self.tier.layout.empty(rows.numel(), pin=self._transfer.pins)
        self.tier.read(rows, records)
        return records

    def _fill(self, slots: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
        (where,) = self._transfer.to_device(_long(slots)).take()
        (records,) = self._fetch(_long(rows)).take()
        self.pool.fill(where, records)

    def _fill_overflow(self, plan: Plan) -> RowPool:
        """Bring every row of a batch that exceeds the cache into a pool of its own: cached ones from their slots."""
        if self._remedy is not None:
            self.writer.executed(plan.batch)
            raise WorkingSetTooLarge(
                f"one batch has {plan.unique_ids:,} distinct rows of width {self.tier.layout.dim}, the budget holds "
                f"{self.planner.slots:,}: {self._remedy(plan.unique_ids)}"
            )
        if self._overflow is None or self._overflow.slots < plan.unique_ids:
            self._overflow = None  # frees the smaller pool before the larger one is made
            self._overflow = self._make_pool(1 << (plan.unique_ids - 1).bit_length())
        pool = self._overflow
        pool.steps = self.pool.steps
        held, absent = np.flatnonzero(plan.slots >= 0), np.flatnonzero(plan.slots < 0)
        if held.size:
            where, source = self._transfer.to_device(_long(held), _long(plan.slots[held])).take()
            pool.fill(where, self.pool.read(source))
        self.writer.wait(plan.fetch_after)
        if absent.size:
            (where,) = self._transfer.to_device(_long(absent)).take()
            (records,) = self._fetch(_long(plan.rows[absent])).take()
            pool.fill(where, records)
        self._bypass = _Bypass(pool, plan, torch.is_grad_enabled())
        self.traffic.rows_fetched += absent.size
        return pool

    def set_hyper_parameters(self, values: Mapping[str, float]) -> None:
        """Train with other values from the next lookup on."""
        for pool in self.pools:
            pool.set_hyper_parameters(values)

    def _count(self, prepared: Prepared) -> None:
        plan, traffic = prepared.plan, self.traffic
        traffic.steps += 1
        traffic.lookups += plan.inverse.size
        traffic.unique_ids += plan.unique_ids
        traffic.unique_misses += plan.unique_misses
        traffic.lookup_misses += plan.lookup_misses
        traffic.overflow_batches += plan.overflow
        if self.count_by_table:
            self._count_by_table(plan)

    def _count_by_table(self, plan: Plan) -> None:
        tables = len(self.group.tables)
        table_of_row = np.searchsorted(self._starts, plan.rows, side="right") - 1
        seen = np.bincount(table_of_row, minlength=tables)
        missed = np.bincount(table_of_row[plan.missed], minlength=tables)
        for table, n, m in zip(self.group.tables, seen.tolist(), missed.tolist(), strict=True):
            before = self.traffic.by_table.get(table.name, (0, 0))
            self.traffic.by_table[table.name] = (before[0] + n, before[1] + m)


def _long(values: NDArray[Any]) -> Tensor:
    """As an int64 tensor."""
    return torch.from_numpy(values.astype(np.int64))
