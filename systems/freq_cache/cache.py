"""One cache: the rows of all tables of one width and pooling, on the host, and slots for the hot ones on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

from systems.contract import Rows, SparseOptimizer, WorkingSetTooLarge
from systems.features import Group
from systems.freq_cache.host_tier import HostTier
from systems.freq_cache.planner import Moves, Planner
from systems.freq_cache.policy import Policy
from systems.freq_cache.pool import RowPool


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


@dataclass
class _Bypass:
    """A batch looked up outside the cache, whose updated rows have yet to go home."""

    pool: RowPool
    rows: Tensor
    changes: bool


class _InFlight:
    """A looked-up batch whose backward has yet to update its slots. Its autograd graph keeps it alive."""

    def __init__(self) -> None:
        self.arrived = False

    def arrive(self, gradient: Tensor) -> None:
        """A gradient came: the fused update follows within the same backward."""
        self.arrived = True


class Cache:
    """Keeps the host copy and the slots of one group of tables consistent, whatever the order of calls.

    One batch at a time: until its backward has run, or its outputs are gone, every other call is refused, because the
    rows that backward will update could leave the cache meanwhile and the update would be lost.

    `smallest_budget` says which byte budget gives this cache that many slots, for the refusal of a batch with more
    distinct rows than slots. None: such a batch is looked up in a pool of its own.
    """

    def __init__(
        self,
        group: Group,
        *,
        slots: int,
        policy: Policy,
        optimizer: SparseOptimizer,
        device: torch.device,
        smallest_budget: Callable[[int], int] | None,
    ) -> None:
        sizes = torch.tensor([table.num_embeddings for table in group.tables])
        self._starts = sizes.cumsum(0) - sizes
        self._start_of_table = {t.name: int(s) for t, s in zip(group.tables, self._starts, strict=True)}
        self._tables = {t.name: t for t in group.tables}
        order = torch.tensor(group.table_of_feature)
        self._feature_starts, self._feature_ends = self._starts[order], (self._starts + sizes)[order]
        self._group = group
        self._optimizer = optimizer
        self._device = device
        self._smallest_budget = smallest_budget
        first: EmbeddingBagConfig = group.tables[0]
        self._dim: int = first.embedding_dim
        self._pooling: PoolingType = first.pooling
        self.host = HostTier(rows=int(sizes.sum()), dim=self._dim, optimizer=optimizer)
        self.planner = Planner(rows=int(sizes.sum()), slots=slots, policy=policy)
        self.pool = self._pool(slots)
        self._overflow: RowPool | None = None
        self._bypass: _Bypass | None = None
        self._in_flight: Callable[[], _InFlight | None] = lambda: None
        self._warm = False
        self.traffic = Traffic()
        self.count_by_table = False

    def look_up(self, part: KeyedJaggedTensor) -> Tensor:
        """Pool the rows of a batch, fp32 `[batch, features * dim]`.

        Raises:
            IndexError: an id is outside its table.
            WorkingSetTooLarge: the batch has more distinct rows than slots and may not overflow.
            RuntimeError: the batch before waits for its backward.
        """
        self._settle()
        if not self._warm:
            self._warm = True
            rows, slots = self.planner.warm_up()
            self.pool.fill(slots, self.host.gather(rows))
        ids = self._linear_ids(part)
        changes = torch.is_grad_enabled()
        moves = self.planner.plan(ids, changes=changes)
        self._count(ids, moves)
        if moves.write_back_rows.numel():
            self.host.scatter(moves.write_back_rows, self.pool.read(moves.write_back_slots))
        if moves.fetch_rows.numel():
            self.pool.fill(moves.fetch_slots, self.host.gather(moves.fetch_rows))
        pool = self.pool if moves.overflow_rows is None else self._fill_overflow(moves.overflow_rows, changes)
        pooled = pool.look_up(moves.slots, part.offsets())
        if pooled.requires_grad:
            in_flight = _InFlight()
            pooled.register_hook(in_flight.arrive)
            self._in_flight = weakref.ref(in_flight)
        return pooled

    def load(self, table: str, start: int, rows: Rows) -> None:
        """Overwrite rows of a table, on the host and in any slot that holds them."""
        self._settle()
        first = self._start_of_table[table] + start
        ids = torch.arange(first, first + rows.weights.shape[0])
        self.host.scatter(ids, rows)
        slots = self.planner.slot_of_row.index_select(0, ids)
        held = (slots >= 0).nonzero().squeeze(1)
        if held.numel():
            self.pool.fill(slots[held].long(), self.host.gather(ids[held]))
            self.planner.dirty.index_fill_(0, slots[held].long(), False)

    def read(self, table: str, ids: Tensor) -> Rows:
        """Copies of rows of a table, up to date."""
        self.flush()
        rows = self._tables[table].num_embeddings
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:  # else a neighbour's rows would be read
            raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} are not all in table {table} of {rows}")
        return self.host.gather(ids + self._start_of_table[table])

    def flush(self) -> None:
        """Write every changed row back; the slots stay valid."""
        self._settle()
        rows, slots = self.planner.changed()
        if rows.numel():
            self.host.scatter(rows, self.pool.read(slots))

    @property
    def overflow_pool(self) -> RowPool | None:
        """Device rows kept for batches larger than the cache, once there was one."""
        return self._overflow

    @property
    def bytes_per_row(self) -> int:
        """Bytes that move with one row: weights and optimizer state."""
        return 4 * self._dim + self._optimizer.state_bytes(self._dim)

    def _pool(self, slots: int) -> RowPool:
        return RowPool(
            slots=slots,
            dim=self._dim,
            features=len(self._group.features),
            pooling=self._pooling,
            optimizer=self._optimizer,
            device=self._device,
        )

    def _linear_ids(self, part: KeyedJaggedTensor) -> Tensor:
        """Ids of all tables in one numbering, table after table."""
        ids = part.values()
        if ids.device.type != "cpu":
            raise ValueError("the cache plans on the host: pass the features on the CPU")
        counts = torch.tensor(part.length_per_key())
        linear: Tensor = ids.long() + self._feature_starts.repeat_interleave(counts)
        outside = (ids < 0) | (linear >= self._feature_ends.repeat_interleave(counts))
        if outside.any():
            at = int(outside.nonzero()[0])
            feature = int((counts.cumsum(0) <= at).sum())
            table = self._group.tables[self._group.table_of_feature[feature]]
            raise IndexError(
                f"feature {self._group.features[feature]}: id {int(ids[at])} is outside table {table.name} of "
                f"{table.num_embeddings} rows"
            )
        return linear

    def _fill_overflow(self, rows: Tensor, changes: bool) -> RowPool:
        """Bring every row of a batch that exceeds the cache into a pool of its own: cached ones from their slots."""
        if self._smallest_budget is not None:
            smallest = self._smallest_budget(rows.numel())
            raise WorkingSetTooLarge(
                f"one batch has {rows.numel():,} distinct rows of width {self._dim}, the budget holds "
                f"{self.planner.slots:,}: the smallest budget that works for it is {smallest:,} bytes "
                f"({smallest / 2**30:.3f} GiB)"
            )
        if self._overflow is None or self._overflow.slots < rows.numel():
            self._overflow = None  # frees the smaller pool before the larger one is made
            self._overflow = self._pool(1 << (rows.numel() - 1).bit_length())
        position = torch.arange(rows.numel())
        slots = self.planner.slot_of_row.index_select(0, rows)
        for held, bring in (((slots >= 0), True), ((slots < 0), False)):
            where = held.nonzero().squeeze(1)
            if not where.numel():
                continue
            if bring:
                self._overflow.copy_from(self.pool, theirs=slots[where].long(), ours=position[where])
            else:
                self._overflow.fill(position[where], self.host.gather(rows[where]))
        self._bypass = _Bypass(self._overflow, rows, changes)
        return self._overflow

    def _settle(self) -> None:
        """Take the rows of a bypassed batch home: to their slot if they have one, else to the host.

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
        if not bypass.changes:
            return
        slots = self.planner.slot_of_row.index_select(0, bypass.rows)
        held = (slots >= 0).nonzero().squeeze(1)
        absent = (slots < 0).nonzero().squeeze(1)
        if held.numel():
            self.pool.copy_from(bypass.pool, theirs=held, ours=slots[held].long())
            self.planner.dirty.index_fill_(0, slots[held].long(), True)
        self.host.scatter(bypass.rows[absent], bypass.pool.read(absent))
        self.traffic.rows_written_back += absent.numel()

    def _count(self, ids: Tensor, moves: Moves) -> None:
        traffic = self.traffic
        traffic.steps += 1
        traffic.lookups += ids.numel()
        traffic.unique_ids += moves.unique_ids
        traffic.unique_misses += moves.unique_misses
        traffic.lookup_misses += moves.lookup_misses
        traffic.rows_fetched += moves.unique_misses  # an overflow batch brings the rest of them past the slots
        traffic.rows_written_back += moves.write_back_rows.numel()
        traffic.overflow_batches += moves.overflow_rows is not None
        if self.count_by_table:
            self._count_by_table(ids.unique(), moves)

    def _count_by_table(self, unique: Tensor, moves: Moves) -> None:
        """Unique ids and misses by table; sorts the whole batch, so only on demand."""
        ends = self._starts[1:]
        tables = len(self._group.tables)
        seen = torch.bucketize(unique, ends, right=True).bincount(minlength=tables)
        missed = torch.bucketize(moves.missed_rows, ends, right=True).bincount(minlength=tables)
        for table, n, m in zip(self._group.tables, seen.tolist(), missed.tolist(), strict=True):
            before = self.traffic.by_table.get(table.name, (0, 0))
            self.traffic.by_table[table.name] = (before[0] + n, before[1] + m)
