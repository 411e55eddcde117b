"""The cache as a module: a drop-in for torchrec's `EmbeddingBagCollection`."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.contract import (
    Anatomy,
    CacheRatio,
    Counters,
    EmbeddingSystem,
    Placement,
    Purpose,
    Rows,
    Support,
    SystemSpec,
    Tier,
    Verdict,
)
from systems.features import FeatureGroups, Group
from systems.freq_cache.cache import Cache
from systems.freq_cache.policy import LFU, Policy, StaticFrequency
from systems.tbe_system import fbgemm_support


class CachedEmbeddingBagCollection(EmbeddingSystem):
    """All rows on the host, the hot ones in device slots; one cache per width and pooling.

    `policy=static` ranks rows by their frequency in the training split, `policy=lfu` by occurrences so far. Optimizer
    state moves with its row, only changed rows are written back, and no index lives on the device. A batch with more
    distinct rows than slots is looked up in a pool of its own under a cache ratio, and refused under a byte budget.
    """

    variants = {"policy": ("static", "lfu")}
    ids_on_host = True

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._groups = _groups(spec)
        self._caches = tuple(self._build(group) for group in self._groups.groups)
        self._cache_of_table = {
            table.name: cache
            for group, cache in zip(self._groups.groups, self._caches, strict=True)
            for table in group.tables
        }

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return {Tier.DEVICE: _least_device_bytes(spec), Tier.HOST: spec.row_bytes + spec.state_bytes + 8 * spec.rows}

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        if spec.parameters["policy"] == "static" and spec.frequencies is None:
            return Support(
                Verdict.UNSUPPORTED, "policy=static ranks rows by id frequencies: give them, or use policy=lfu"
            )
        if len(spec.optimizer.state_shapes(4)) > 1:
            return Support(Verdict.UNSUPPORTED, "freq_cache has no Adam yet: use sgd or rowwise_adagrad")
        refusal = fbgemm_support(spec)
        return super().support(spec) if refusal.verdict is Verdict.YES else refusal

    @property
    def placement(self) -> Placement:
        on_cuda = self._caches[0].pool.weights.device.type == "cuda"
        # two tiers of the same RAM move real bytes, but no link is crossed: nothing to rank against
        return Placement(label="host + device slots" if on_cuda else "RAM + slots in RAM", offloads=on_cuda)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        parts = self._groups.split(features)
        return self._groups.join([cache.look_up(part) for cache, part in zip(self._caches, parts, strict=True)])

    def load_rows(self, table: str, start: int, rows: Rows) -> None:
        self.check_rows(table, start, rows)
        self._cache_of_table[table].load(table, start, rows)

    def read_rows(self, table: str, ids: Tensor) -> Rows:
        return self._cache_of_table[table].read(table, ids)

    def flush(self) -> None:
        for cache in self._caches:
            cache.flush()

    def memory(self) -> Anatomy:
        overflow = [cache.overflow_pool for cache in self._caches if cache.overflow_pool is not None]
        return {
            (Tier.DEVICE, Purpose.ROWS): sum(cache.pool.row_bytes for cache in self._caches),
            (Tier.DEVICE, Purpose.STATE): sum(cache.pool.state_bytes for cache in self._caches),
            (Tier.DEVICE, Purpose.INDEX): 0,
            (Tier.DEVICE, Purpose.STAGING): sum(pool.row_bytes + pool.state_bytes for pool in overflow)
            + 8 * self.spec.batch_lookups,
            (Tier.HOST, Purpose.ROWS): sum(cache.host.row_bytes for cache in self._caches),
            (Tier.HOST, Purpose.STATE): sum(cache.host.state_bytes for cache in self._caches),
            (Tier.HOST, Purpose.INDEX): sum(cache.planner.index_bytes() for cache in self._caches),
        }

    def counters(self) -> Counters:
        parts = [(cache.traffic, cache.bytes_per_row) for cache in self._caches]
        by_table = {name: pair for traffic, _ in parts for name, pair in traffic.by_table.items()}
        return Counters(
            steps=max(traffic.steps for traffic, _ in parts),
            lookups=sum(traffic.lookups for traffic, _ in parts),
            unique_ids=sum(traffic.unique_ids for traffic, _ in parts),
            unique_misses=sum(traffic.unique_misses for traffic, _ in parts),
            lookup_misses=sum(traffic.lookup_misses for traffic, _ in parts),
            rows_fetched=sum(traffic.rows_fetched for traffic, _ in parts),
            rows_written_back=sum(traffic.rows_written_back for traffic, _ in parts),
            bytes_fetched=sum(traffic.rows_fetched * width for traffic, width in parts),
            bytes_written_back=sum(traffic.rows_written_back * width for traffic, width in parts),
            overflow_batches=max(traffic.overflow_batches for traffic, _ in parts),
            per_table=by_table or None,
        )

    def reset_counters(self) -> None:
        for cache in self._caches:
            cache.traffic = type(cache.traffic)()

    def count_traffic(self, enabled: bool) -> None:
        for cache in self._caches:
            cache.count_by_table = enabled

    def _build(self, group: Group) -> Cache:
        rows = _rows(group)
        return Cache(
            group,
            slots=_slots(self.spec, group),
            policy=self._policy(group, rows),
            optimizer=self.spec.optimizer,
            device=self.spec.device,
            smallest_budget=None
            if isinstance(self.spec.budget, CacheRatio)
            else lambda slots: _budget_for(self.spec, group, slots),
        )

    def _policy(self, group: Group, rows: int) -> Policy:
        if self.spec.parameters["policy"] == "lfu":
            return LFU(rows)
        frequencies = self.spec.frequencies
        if frequencies is None:
            raise ValueError("policy=static needs the frequencies of a SystemSpec")
        return StaticFrequency(torch.cat([frequencies[table.name] for table in group.tables]))


def _groups(spec: SystemSpec) -> FeatureGroups:
    return FeatureGroups(spec.tables, key=lambda table: (table.embedding_dim, table.pooling))


def _rows(group: Group) -> int:
    rows: int = sum(table.num_embeddings for table in group.tables)
    return rows


def _bytes_per_slot(spec: SystemSpec, group: Group) -> int:
    dim: int = group.tables[0].embedding_dim
    return 4 * dim + spec.optimizer.state_bytes(dim)


def _least_device_bytes(spec: SystemSpec) -> int:
    """One slot for every cache, and the slot ids of one batch, 8 B each."""
    return 8 * spec.batch_lookups + sum(_bytes_per_slot(spec, group) for group in _groups(spec).groups)


def _slots(spec: SystemSpec, group: Group) -> int:
    """Slots of a group's cache: the ratio of its rows, or one and what its share (by rows) of a byte budget adds."""
    rows = _rows(group)
    if isinstance(spec.budget, CacheRatio):
        return max(1, int(rows * spec.budget.ratio))
    left = spec.budget.total_bytes - _least_device_bytes(spec)
    return min(rows, 1 + left * rows // spec.rows // _bytes_per_slot(spec, group))


def _budget_for(spec: SystemSpec, group: Group, slots: int) -> int:
    """The smallest byte budget that gives a group's cache so many slots."""
    share = (slots - 1) * _bytes_per_slot(spec, group)
    return _least_device_bytes(spec) + -(-share * spec.rows // _rows(group))
