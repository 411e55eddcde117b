"""The most frequent rows on the device, all others looked up on the host: the placement of FAE and Hotline."""

from collections.abc import Iterator

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.answers import Counters, MemoryBreakdown, MemoryUse, Placement, Rows, Tier, knowledge, total_of
from systems.fbgemm.tbe import TBE, build_tbe, load_tbe_rows, read_tbe_rows, tbe_anatomy
from systems.fbgemm.tbe_system import fbgemm_refusals
from systems.spec import CacheRatio, SystemSpec, row_bytes_of
from systems.unique_counter import CountedSystem, UniqueCounter

PLACE_BYTES = 4
"""Bytes per row on the host for its side and its location there."""


class HotSplit(CountedSystem):
    """Frequent rows in GPU memory, all others pooled by the CPU: for skewed ids whose frequencies stay as they were.

    A row is on device or host for good, by its accesses in the training split; both sides' sums are added.

    The placement is that of FAE (arXiv 2103.00686) and Hotline (arXiv 2204.05436), the schedule is not: those papers
    also reorder samples into batches, or parts of batches, that need hot rows only. Here batches keep their order.

    No row moves. Rows on the host count as missing on the device. The host's pooled vectors, one per bag of every
    feature, and their gradients cross the link instead, from and to pageable memory. Adam is refused: fbgemm has none
    on a CPU.

    Rows keep their order within a side. The location of a hot row is its index `p` there, of any other row `~p`.
    `_sides` has the TBE of hot rows under True, that of the others under False, and none for a side without rows.
    """

    ids_on_host = True

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        hot = hot_rows(spec)
        self._places = {name: _places_of(rows) for name, rows in hot.items()}
        self._slots = sum(int(rows.sum()) for rows in hot.values())
        self._cold = UniqueCounter(spec.tables)
        self._sides: dict[bool, TBE] = {}  # the hot side first: device kernels overlap with the host's lookup
        for is_hot, location in ((True, EmbeddingLocation.DEVICE), (False, EmbeddingLocation.HOST)):
            counts = [int((hot[table.name] == is_hot).sum()) for table in spec.tables]
            if any(counts):
                self._sides[is_hot] = build_tbe(
                    [(count, table.embedding_dim) for count, table in zip(counts, spec.tables, strict=True)],
                    table_of_feature=self._groups.groups[0].table_of_feature,
                    pooling=PoolingType.SUM,
                    optimizer=spec.optimizer,
                    device=spec.device,
                    location=location,
                    # finding the locations has checked the ids; on CUDA the check stays, as in all other systems
                    checked=spec.device.type == "cuda",
                )

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        one = _record_bytes(spec)
        return {Tier.DEVICE: one, Tier.HOST: spec.row_bytes + spec.state_bytes - one + PLACE_BYTES * spec.rows}

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if spec.frequencies is None:
            yield "hot_split ranks rows by id frequencies: give them, or use freq_cache[policy=lfu], which needs none"
        yield from fbgemm_refusals(spec, on_cpu=True)
        yield from super().refusals(spec)

    @property
    def prior_knowledge(self) -> str:
        return knowledge("training frequencies")

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def placement(self) -> Placement:
        on_host = {tbe.use_cpu for tbe in self._sides.values()}
        if on_host == {True}:
            return Placement(label="hot and other rows, all in RAM", offloads=False)
        offloads = True in on_host  # a budget may have room for all rows
        return Placement(label="device + host, looked up there" if offloads else "device", offloads=offloads)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        (ordered,) = self._groups.split(features)
        self._counter.observe(ordered)
        by_feature = ordered.values().split(ordered.length_per_key())
        tables = [table.name for table in self.spec.tables for _ in table.feature_names]
        places = torch.cat(
            [self._places[table].index_select(0, ids) for table, ids in zip(tables, by_feature, strict=True)]
        ).long()  # int64, as in all systems
        hot, ends = places >= 0, ordered.offsets()  # a bag has ids on one side, both or none
        hot_ends = torch.nn.functional.pad(hot.cumsum(0), (1, 0)).index_select(0, ends)
        split = {True: (places[hot], hot_ends), False: (~places[~hot], ends - hot_ends)}
        pooled = []
        for is_hot, tbe in self._sides.items():
            ids, offsets = split[is_hot]
            if not is_hot:
                self._cold.observe(KeyedJaggedTensor(ordered.keys(), ids, offsets=offsets))
            pooled.append(tbe(ids.to(tbe.current_device), offsets.to(tbe.current_device)).to(self.spec.device))
        return self._groups.join([pooled[0].add_(pooled[1]) if len(pooled) > 1 else pooled[0]])

    def _on_sides(self, table: str, ids: Tensor | slice) -> Iterator[tuple[TBE, Tensor, Tensor]]:
        """Rows of a table by side: the TBE, the mask of the rows that are there, and their indices in its table."""
        places = self._places[table][ids]
        for is_hot, tbe in self._sides.items():
            on_side = (places >= 0) == is_hot
            yield tbe, on_side, places[on_side] if is_hot else ~places[on_side]

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        index = list(self.tables).index(table)
        for tbe, on_side, found in self._on_sides(table, slice(start, start + len(rows.weights))):
            if found.numel():  # consecutive rows are consecutive on each side
                own = Rows(rows.weights[on_side], {name: value[on_side] for name, value in rows.state.items()})
                load_tbe_rows(tbe, table=index, start=int(found[0]), rows=own)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        index, dim = list(self.tables).index(table), self.tables[table].embedding_dim
        weights, state = torch.empty(ids.numel(), dim), self.spec.optimizer.zero_state(ids.numel(), dim)
        for tbe, on_side, found in self._on_sides(table, ids):
            rows = read_tbe_rows(tbe, table=index, ids=found)
            weights[on_side] = rows.weights
            for name, value in rows.state.items():
                state[name][on_side] = value
        return Rows(weights, state)

    def set_learning_rate(self, lr: float) -> None:
        for tbe in self._sides.values():
            tbe.set_learning_rate(lr)

    def memory(self) -> MemoryBreakdown:
        """Bytes by tier and purpose. Hot rows count as `device` also on a CPU."""
        sides = [
            tbe_anatomy([tbe], host_rows_are=Tier.DEVICE if is_hot else Tier.HOST)
            for is_hot, tbe in self._sides.items()
        ]
        index = {(Tier.HOST, MemoryUse.INDEX): sum(places.nbytes for places in self._places.values())}
        return total_of([index, *sides])

    def counters(self) -> Counters:
        return self._counter.looked_up_in_place(self._cold)

    def reset_counters(self) -> None:
        super().reset_counters()
        self._cold.reset()

    def count_traffic(self, enabled: bool) -> None:
        super().count_traffic(enabled)
        self._cold.enabled = enabled


def hot_rows(spec: SystemSpec) -> dict[str, Tensor]:
    """Mask of the rows that the budget puts on the device: the most frequent over all tables, as many as fit.

    Ties are taken in the order of the tables. A ratio is of all rows, and gives at least one; bytes include the
    optimizer state.

    Returns:
        bool `[rows]` by table name.
    """
    assert spec.frequencies is not None
    counts = torch.cat([spec.frequencies[table.name] for table in spec.tables])
    room = min(spec.rows, spec.budget_bytes // _record_bytes(spec))
    if isinstance(spec.budget, CacheRatio):
        room = max(1, int(spec.rows * spec.budget.ratio))
    least = counts.kthvalue(spec.rows - room + 1).values
    hot = counts > least
    hot[(counts == least).nonzero().flatten()[: room - int(hot.sum())]] = True
    of_tables = hot.split([table.num_embeddings for table in spec.tables])
    return {table.name: rows for table, rows in zip(spec.tables, of_tables, strict=True)}


def _places_of(hot: Tensor) -> Tensor:
    """Locations of a table's rows, int32 `[rows]`: `p` for hot rows, `~p` for others, in order on each side."""
    before = hot.cumsum(0)
    return torch.where(hot, before - 1, before - torch.arange(1, len(hot) + 1)).int()


def _record_bytes(spec: SystemSpec) -> int:
    table = spec.tables[0]
    return row_bytes_of(table) + spec.optimizer.state_bytes(table.embedding_dim)
