"""fbgemm's unified virtual memory: rows in host memory that kernels address directly, with and without a cache.

`uvm_host_mapped=True` (the default here) takes malloc + cudaHostRegister; `memory=managed` takes cudaMallocManaged with
the host as preferred location. On a CPU neither exists: rows are host-resident and `placement` says so.
"""

from __future__ import annotations

from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems.contract import (
    CacheRatio,
    Counters,
    OptimizerKind,
    Support,
    SystemSpec,
    Tier,
    Verdict,
)
from systems.features import FeatureGroups, Group
from systems.tbe import POLICIES, WAYS, counting_metrics
from systems.tbe_system import TBESystem

_MEMORY = ("host_mapped", "managed")


class FbgemmUVM(TBESystem):
    """Rows in UVM, no cache: every lookup crosses the link."""

    variants = {"memory": _MEMORY}

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return uvm_required_bytes(spec)

    def location(self) -> EmbeddingLocation:
        return EmbeddingLocation.MANAGED

    def cache_options(self, group: Group) -> dict[str, Any]:
        return {"uvm_host_mapped": self.spec.parameters["memory"] == "host_mapped"}

    def counters(self) -> Counters:
        return self._counter.uncached_uvm() if self.spec.device.type == "cuda" else super().counters()


class FbgemmUVMCaching(TBESystem):
    """Rows in UVM behind fbgemm's 32-way set-associative device cache, one cache per pooling.

    `prefetch=on` populates the cache for the next batch on a stream of its own (LRU only, as in fbgemm).
    """

    variants = {"policy": ("lru", "lfu"), "memory": _MEMORY, "prefetch": ("off", "on")}

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        on_cuda = spec.device.type == "cuda"
        self._prefetching = on_cuda and spec.parameters["prefetch"] == "on"
        self._stream = torch.cuda.Stream() if self._prefetching else None
        self.count_traffic(False)

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return uvm_required_bytes(spec, caching=True)

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        if spec.parameters["prefetch"] == "on" and spec.parameters["policy"] != "lru":
            return Support(Verdict.UNSUPPORTED, "fbgemm prefetches with policy=lru only")
        return super().support(spec)

    def location(self) -> EmbeddingLocation:
        return EmbeddingLocation.MANAGED_CACHING

    def cache_options(self, group: Group) -> dict[str, Any]:
        policy = self.spec.parameters["policy"]
        return {
            "uvm_host_mapped": self.spec.parameters["memory"] == "host_mapped",
            "cache_algorithm": POLICIES[policy],
            "cache_sets": cache_sets(self.spec, group.tables),
            "prefetch_pipeline": self.spec.parameters["prefetch"] == "on",
            "gather_uvm_cache_stats": policy == "lru",
            "record_cache_metrics": counting_metrics(policy),
        }

    @property
    def look_ahead(self) -> int:
        return 1 if self._prefetching else 0

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        if self._stream is None:
            return
        compute = torch.cuda.current_stream()
        self._stream.wait_stream(compute)  # the ids were copied to the device on the compute stream
        with torch.cuda.stream(self._stream):
            for tbe, part in zip(self._tbes, self._groups.split(features), strict=True):
                tbe.prefetch(part.values(), part.offsets(), forward_stream=compute)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)  # the rows of this batch must have arrived
        return super().forward(features)

    def count_traffic(self, enabled: bool) -> None:
        super().count_traffic(enabled)
        if self.spec.device.type == "cuda":
            for tbe in self._tbes:
                set_tbe_counting(tbe, policy=self.spec.parameters["policy"], enabled=enabled)

    def reset_counters(self) -> None:
        super().reset_counters()
        for tbe in self._tbes:
            tbe.uvm_cache_stats.zero_()
            tbe.cache_miss_counter.zero_()

    def counters(self) -> Counters:
        if self.spec.device.type == "cpu":
            return super().counters()
        dims = [group.tables[0].embedding_dim for group in self._groups.groups]
        return cached_uvm_counters(
            self._tbes,
            row_bytes=[4 * dim for dim in dims],
            policy=self.spec.parameters["policy"],
            steps=self._counter.steps,
            unique_ids=self._counter.unique_ids,
            lookups=self._counter.lookups,
        )


def uvm_required_bytes(spec: SystemSpec, *, caching: bool = False) -> dict[Tier, int]:
    """The least a UVM system takes: row-wise optimizer state sits on the device for every row, and is never cached.

    A cache adds 4 B per row (row to table), 8 B more per row with LFU (its counts), and at least one set of 32 slots.
    """
    if spec.device.type == "cpu":
        return {Tier.HOST: spec.row_bytes + spec.state_bytes}
    rowwise = spec.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
    device = spec.state_bytes if rowwise else 0
    if caching:
        device += spec.rows * (12 if spec.parameters["policy"] == "lfu" else 4)
        for group in FeatureGroups(spec.tables, key=lambda table: table.pooling).groups:
            device += WAYS * slot_bytes(spec, group.tables)
    return {Tier.DEVICE: device, Tier.HOST: spec.row_bytes + (0 if rowwise else spec.state_bytes)}


def slot_bytes(spec: SystemSpec, tables: tuple[EmbeddingBagConfig, ...]) -> int:
    """Device bytes per cache slot: a line as wide as the widest table, its row, its stamp, its lock if prefetching."""
    width: int = max(table.embedding_dim for table in tables)
    stamp = 8 if spec.parameters["policy"] == "lru" else 0
    lock = 4 if spec.parameters.get("prefetch") == "on" else 0
    return 4 * width + 8 + stamp + lock


def cache_sets(spec: SystemSpec, tables: tuple[EmbeddingBagConfig, ...]) -> int:
    """Sets of 32 slots for the tables of one TBE, from the ratio or from this TBE's share of the byte budget."""
    rows = sum(table.num_embeddings for table in tables)
    if isinstance(spec.budget, CacheRatio):
        return max(1, -(-int(rows * spec.budget.ratio) // WAYS))
    groups = FeatureGroups(spec.tables, key=lambda table: table.pooling).groups
    least = uvm_required_bytes(spec, caching=True)[Tier.DEVICE]
    one_set_each = sum(WAYS * slot_bytes(spec, group.tables) for group in groups)
    left = (spec.budget.total_bytes - least + one_set_each) * rows // spec.rows
    return max(1, int(left // (WAYS * slot_bytes(spec, tables))))


def set_tbe_counting(tbe: Any, *, policy: str, enabled: bool) -> None:  # noqa: ANN401
    """Switch a TBE's statistics, which cost a lookup and a sort per batch, at run time."""
    if policy == "lru":
        tbe.gather_uvm_cache_stats = enabled
    else:
        tbe.record_cache_metrics.record_cache_miss_counter = enabled


def cached_uvm_counters(
    tbes: tuple[Any, ...],
    *,
    row_bytes: list[int],
    policy: str,
    steps: int,
    unique_ids: int,
    lookups: int,
) -> Counters:
    """Traffic from fbgemm's own statistics.

    LRU: rows fetched are the misses that found a place; a row without one is read per occurrence and read and written
    once in backward. Every eviction writes back; evictions are not counted by fbgemm and taken as equal to insertions,
    which holds once the cache is full. LFU counts misses only, so its bytes are unknown.
    """
    if not steps:
        return Counters(steps=0)
    if policy == "lfu":
        misses = sum(int(tbe.cache_miss_counter[1]) for tbe in tbes)
        return Counters(steps=steps, lookups=lookups, unique_ids=unique_ids, unique_misses=misses)
    fetched = written = fetched_bytes = written_bytes = misses = 0
    for tbe, width in zip(tbes, row_bytes, strict=True):
        _, _, _, unique_misses, conflict_unique, conflict_lookups = tbe.uvm_cache_stats.tolist()
        inserted = unique_misses - conflict_unique
        rows_in = inserted + conflict_lookups + conflict_unique
        rows_out = inserted + conflict_unique
        misses += unique_misses
        fetched, written = fetched + rows_in, written + rows_out
        fetched_bytes, written_bytes = fetched_bytes + rows_in * width, written_bytes + rows_out * width
    return Counters(
        steps=steps,
        lookups=lookups,
        unique_ids=unique_ids,
        unique_misses=misses,
        rows_fetched=fetched,
        rows_written_back=written,
        bytes_fetched=fetched_bytes,
        bytes_written_back=written_bytes,
    )
