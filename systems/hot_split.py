"""The most frequent rows on the device, all others looked up on the host: the placement of FAE and Hotline."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor, PoolingType

from systems.answers import (
    Counters,
    MemoryBreakdown,
    MemoryUse,
    Placement,
    Rows,
    Support,
    Tier,
    Verdict,
    knowledge,
    total_of,
)
from systems.fbgemm.tbe import TBE, build_tbe, load_tbe_rows, read_tbe_rows, tbe_anatomy
from systems.fbgemm.tbe_system import fbgemm_support
from systems.features import FeatureGroups, Group
from systems.spec import CacheRatio, SystemSpec, row_bytes_of
from systems.unique_counter import CountedSystem, UniqueCounter

PLACE_BYTES = 4
"""Bytes per row on the host for its side and its location there."""


class HotSplit(CountedSystem):
    """Each row permanently on device or host, by its accesses in the training split; both sides' sums are added.

    The placement is that of FAE (arXiv 2103.00686) and Hotline (arXiv 2204.05436), the schedule is not: those papers
    also reorder samples into batches, or parts of batches, that need hot rows only. Here batches keep their order.

    No row moves. Rows on the host count as missing on the device. The host's pooled vectors, one per bag of every
    feature, and their gradients cross the link instead, from and to pageable memory. Adam is refused: fbgemm has none
    on a CPU.
    """

    about = (
        "The most frequent rows in GPU memory, all others pooled by the CPU in host memory: for skewed ids whose "
        "frequencies stay (FAE and Hotline place rows so; batches keep their order)."
    )
    ids_on_host = True

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        hot = hot_rows(spec)
        self._groups = FeatureGroups(spec.tables, key=lambda table: table.pooling)
        self._parts = [_Part(group, spec, hot) for group in self._groups.groups]
        self._part_of_table = {t.name: (part, i) for part in self._parts for i, t in enumerate(part.group.tables)}
        self._slots = sum(int(rows.sum()) for rows in hot.values())

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        one = max(_record_bytes(table, spec) for table in spec.tables)  # whichever the most frequent is
        return {Tier.DEVICE: one, Tier.HOST: spec.row_bytes + spec.state_bytes - one + PLACE_BYTES * spec.rows}

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        if spec.frequencies is None:
            return Support(
                Verdict.UNSUPPORTED,
                "hot_split ranks rows by id frequencies: give them, or use freq_cache[policy=lfu], which needs none",
            )
        refusal = fbgemm_support(replace(spec, device=torch.device("cpu")))
        return super().support(spec) if refusal.verdict is Verdict.YES else refusal

    @property
    def prior_knowledge(self) -> str:
        return knowledge("training frequencies")

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def placement(self) -> Placement:
        on_host = {tbe.use_cpu for part in self._parts for tbe in part.sides.values()}
        if on_host == {True}:
            return Placement(label="hot and other rows, all in RAM", offloads=False)
        offloads = True in on_host  # a budget may have room for all rows
        return Placement(label="device + host, looked up there" if offloads else "device", offloads=offloads)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        batches = self._groups.split(features)
        self._counter.observe(features)
        return self._groups.join([part.look_up(batch) for part, batch in zip(self._parts, batches, strict=True)])

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        part, index = self._part_of_table[table]
        part.load(index, start, rows)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        self.check_ids(table, ids)
        part, index = self._part_of_table[table]
        return part.read(index, ids)

    def set_learning_rate(self, lr: float) -> None:
        for tbe in chain.from_iterable(part.sides.values() for part in self._parts):
            tbe.set_learning_rate(lr)

    def memory(self) -> MemoryBreakdown:
        return total_of(part.memory() for part in self._parts)

    def counters(self) -> Counters:
        return self._counter.looked_up_in_place([part.cold for part in self._parts])

    def reset_counters(self) -> None:
        super().reset_counters()
        for part in self._parts:
            part.cold.reset()

    def count_traffic(self, enabled: bool) -> None:
        super().count_traffic(enabled)
        for part in self._parts:
            part.cold.enabled = enabled


class _Part:
    """Tables that share one TBE for hot rows on the device and one for the other rows on the host.

    Rows keep their order within a side. The location of a hot row is its index `p` there, of any other row `~p`.
    `sides` has the TBE of hot rows under True, that of the others under False, and none for a side without rows.
    """

    def __init__(self, group: Group, spec: SystemSpec, hot: Mapping[str, Tensor]) -> None:
        self.group = group
        self.cold = UniqueCounter(group.tables)
        self._spec = spec
        self._places = [_places_of(hot[table.name]) for table in group.tables]
        self._dims = torch.tensor(group.dims, device=spec.device)
        self.sides: dict[bool, TBE] = {}  # the hot side first: device kernels overlap with the host's lookup
        for is_hot, location in ((True, EmbeddingLocation.DEVICE), (False, EmbeddingLocation.HOST)):
            counts = [int((hot[table.name] == is_hot).sum()) for table in group.tables]
            if any(counts):
                self.sides[is_hot] = build_tbe(
                    [(count, table.embedding_dim) for count, table in zip(counts, group.tables, strict=True)],
                    table_of_feature=group.table_of_feature,
                    pooling=PoolingType.SUM,  # a mean over a side would divide by the ids of that side
                    optimizer=spec.optimizer,
                    device=spec.device,
                    location=location,
                    # finding the locations has checked the ids; on CUDA the check stays, as in all other systems
                    checked=spec.device.type == "cuda",
                )

    def look_up(self, features: KeyedJaggedTensor) -> Tensor:
        """Pooled rows of both sides, fp32 `[batch, sum of dims]` on the device. `features` are the group's features."""
        by_feature = features.values().split(features.length_per_key())
        places = torch.cat(
            [
                self._places[table].index_select(0, ids)
                for table, ids in zip(self.group.table_of_feature, by_feature, strict=True)
            ]
        ).long()  # int64, as in all systems
        hot, ends = places >= 0, features.offsets()  # a bag has ids on one side, both or none
        hot_ends = torch.nn.functional.pad(hot.cumsum(0), (1, 0)).index_select(0, ends)
        split = {True: (places[hot], hot_ends), False: (~places[~hot], ends - hot_ends)}
        pooled: Tensor | None = None
        for is_hot, tbe in self.sides.items():
            ids, offsets = split[is_hot]
            if not is_hot:
                self.cold.observe(KeyedJaggedTensor(list(self.group.features), ids, offsets=offsets))
            found = tbe(ids.to(tbe.current_device), offsets.to(tbe.current_device)).to(self._spec.device)
            pooled = found if pooled is None else pooled.add_(found)
        assert pooled is not None  # every table has a row
        if self.group.tables[0].pooling is PoolingType.MEAN:
            counts = features.lengths().view(-1, features.stride()).t().clamp(min=1).to(self._spec.device)
            pooled = pooled / counts.repeat_interleave(self._dims, dim=1, output_size=pooled.shape[1])
        return pooled

    def load(self, table: int, start: int, rows: Rows) -> None:
        """Overwrite consecutive rows, which are consecutive on each side."""
        places = self._places[table][start : start + len(rows.weights)]
        for is_hot, tbe in self.sides.items():
            on_side = (places >= 0) == is_hot
            found = places[on_side] if is_hot else ~places[on_side]
            if found.numel():
                own = Rows(rows.weights[on_side], {name: value[on_side] for name, value in rows.state.items()})
                load_tbe_rows(tbe, table=table, start=int(found[0]), rows=own)

    def read(self, table: int, ids: Tensor) -> Rows:
        """Copies of rows on the host, in the order of `ids`."""
        places = self._places[table].index_select(0, ids)
        dim = self.group.tables[table].embedding_dim
        weights, state = torch.empty(ids.numel(), dim), self._spec.optimizer.zero_state(ids.numel(), dim)
        for is_hot, tbe in self.sides.items():
            on_side = (places >= 0) == is_hot
            found = places[on_side] if is_hot else ~places[on_side]
            rows = read_tbe_rows(tbe, table=table, ids=found)
            weights[on_side] = rows.weights
            for name, value in rows.state.items():
                state[name][on_side] = value
        return Rows(weights, state)

    def memory(self) -> MemoryBreakdown:
        """Bytes by tier and purpose. Hot rows count as `device` also on a CPU."""
        sides = [
            tbe_anatomy([tbe], host_rows_are=Tier.DEVICE if is_hot else Tier.HOST) for is_hot, tbe in self.sides.items()
        ]
        index = {(Tier.HOST, MemoryUse.INDEX): sum(places.nbytes for places in self._places)}
        return total_of([index, *sides])


def hot_rows(spec: SystemSpec) -> dict[str, Tensor]:
    """Mask of the rows that the budget puts on the device: the most frequent over all tables, as many as fit.

    Ties are taken in the order of the tables. A ratio is of all rows, and gives at least one; bytes include the
    optimizer state.

    Returns:
        bool `[rows]` by table name.

    Cost: some 32 passes over the frequencies, no sort.
    """
    assert spec.frequencies is not None
    counts = {table.name: spec.frequencies[table.name] for table in spec.tables}
    if isinstance(spec.budget, CacheRatio):
        costs, room = dict.fromkeys(counts, 1), max(1, int(spec.rows * spec.budget.ratio))
    else:
        costs, room = {t.name: _record_bytes(t, spec) for t in spec.tables}, spec.budget.total_bytes

    def cost_above(bar: int) -> int:
        return sum(costs[name] * int((found > bar).sum()) for name, found in counts.items())

    # the lowest bar above which all rows fit
    low, high = -1, max(int(found.max()) for found in counts.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cost_above(middle) <= room else (middle + 1, high)
    room -= cost_above(low)
    hot = {}
    for name, found in counts.items():
        tied = (found == low).nonzero().flatten()[: room // costs[name]]
        room -= costs[name] * len(tied)
        hot[name] = (found > low).index_fill_(0, tied, value=True)
    return hot


def _places_of(hot: Tensor) -> Tensor:
    """Locations of a table's rows, int32 `[rows]`: `p` for hot rows, `~p` for others, in order on each side."""
    before = hot.cumsum(0)
    return torch.where(hot, before - 1, before - torch.arange(1, len(hot) + 1)).int()


def _record_bytes(table: EmbeddingBagConfig, spec: SystemSpec) -> int:
    return row_bytes_of(table) + spec.optimizer.state_bytes(table.embedding_dim)
