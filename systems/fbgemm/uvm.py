"""UVM with and without fbgemm's device cache: rows in host memory that kernels address directly.

`uvm_host_mapped=True` (the default here) uses malloc + cudaHostRegister; `memory=managed` (fbgemm's own default) uses
cudaMallocManaged with the host as preferred location. On a CPU neither exists: rows are host-resident and `placement`
reports that.

`UVM` and `UVMCaching` are the bases that fbgemm's systems share with torchrec's: memory needs, prefetching, counters.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, EmbeddingLocation, RecordCacheMetrics
from torchrec import KeyedJaggedTensor, KeyedTensor

from systems.answers import Counters, Tier, knowledge
from systems.fbgemm.tbe import POLICIES, TBE, WAYS
from systems.fbgemm.tbe_system import Lookup, TBEHolder, TBESystem
from systems.spec import CacheRatio, OptimizerKind, SystemSpec, row_bytes_of

MEMORY = ("host_mapped", "managed")
"""How UVM is allocated: malloc + cudaHostRegister, or cudaMallocManaged with the host as preferred location."""


class UVM(TBEHolder):
    """Base of the UVM systems, by itself of those without a cache. Must be the first base class, as `UVMCaching` must.

    Announced batches are read ahead on the `_reading` stream, if there is one.
    """

    variants = {"memory": MEMORY}

    pipelined = False
    """Whether batches are read ahead on a CUDA device, also where no cache is filled for them."""

    _side: torch.cuda.Stream | None = None
    """Stream on which a cache is filled ahead. With one, an announced batch is counted at once, as fbgemm counts it."""

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        ahead = self.pipelined or spec.parameters.get("prefetch") == "on"
        self._reading = torch.cuda.Stream() if ahead and spec.device.type == "cuda" else None
        self._announced: deque[tuple[KeyedJaggedTensor, Any, torch.cuda.Event]] = deque()

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return uvm_required_bytes(spec)

    def cache_options(self) -> dict[str, Any]:
        return {"uvm_host_mapped": self.spec.parameters.get("memory") == "host_mapped"}

    @property
    def look_ahead(self) -> int:
        return 0 if self._reading is None else 1

    @property
    def prior_knowledge(self) -> str:
        return knowledge()  # a batch that is only read ahead changes no row's place

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        if self._reading is not None:
            self.prefetch_behind(features, torch.cuda.current_stream().record_event())

    def prefetch_behind(self, features: KeyedJaggedTensor, arrived: torch.cuda.Event) -> None:
        """Read a batch on the `_reading` stream, which waits for the batch's copy only.

        torchrec copies numbers there from pageable memory, and the host waits for them. On the compute stream the host
        would wait for the previous step.
        """
        if self._reading is None:
            return
        self._reading.wait_event(arrived)
        with self._reading:
            read = self._read(features)
        for part in read:
            part.record_stream(torch.cuda.current_stream())
        ready = self._ready_on(read, self._reading).record_event()
        self._announced.append((features, read, ready))

    def _read(self, features: KeyedJaggedTensor) -> Any:  # noqa: ANN401 - each system's own parts of a batch
        """Prepare a coming batch for its lookup. Runs on the `_reading` stream."""
        raise NotImplementedError

    def _ready_on(self, read: Any, reading: torch.cuda.Stream) -> torch.cuda.Stream:  # noqa: ANN401
        """Stream that has all the work for which a lookup of `read`, the result of `_read`, waits."""
        return reading

    def _take(self, features: KeyedJaggedTensor) -> Any:  # noqa: ANN401
        """What was prepared for the oldest announced batch; the current stream waits until it is ready.

        Raises:
            RuntimeError: `features` is another batch. fbgemm would return the rows of the announced one.
        """
        announced, prepared, ready = self._announced[0]
        if announced is not features:
            raise RuntimeError("batches must be looked up in the order in which they were announced, none in between")
        self._announced.popleft()
        torch.cuda.current_stream().wait_event(ready)
        return prepared

    def counters(self) -> Counters:
        on_cuda = self.spec.device.type == "cuda"
        return self._counter.uncached_uvm(self.spec.optimizer) if on_cuda else self._counter.counters()


class UVMCaching(UVM):
    """Base of both caching UVM systems: fbgemm's cache, filled ahead on a stream of its own with `prefetch=on`."""

    variants = {"policy": ("lru", "lfu"), "memory": MEMORY, "prefetch": ("off", "on")}

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        if self._reading is not None and spec.parameters["prefetch"] == "on":
            self._side = torch.cuda.Stream()
        self.count_traffic(False)

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return uvm_required_bytes(spec, caching=True)

    @classmethod
    def refusals(cls, spec: SystemSpec) -> Iterator[str]:
        if spec.parameters["prefetch"] == "on" and spec.parameters["policy"] != "lru":
            yield "fbgemm prefetches with policy=lru only"
        yield from super().refusals(spec)

    @property
    def slots(self) -> int:
        # on a CPU there is no cache, but `lxu_cache_state` still has one element
        return sum(tbe.lxu_cache_state.numel() for tbe in self.tbes if tbe.lxu_cache_weights.numel())

    @property
    def prior_knowledge(self) -> str:
        ahead = 0 if self._side is None else 1
        return knowledge("the past", look_ahead=ahead) if self.slots else super().prior_knowledge

    def cache_options(self) -> dict[str, Any]:
        policy = self.spec.parameters["policy"]
        return {
            **super().cache_options(),
            "cache_algorithm": POLICIES[policy],
            "prefetch_pipeline": self.spec.parameters["prefetch"] == "on",
            "gather_uvm_cache_stats": policy == "lru",
            # LFU fills only one field of the statistics; its misses need fbgemm's miss counter
            "record_cache_metrics": RecordCacheMetrics(policy == "lfu", False),
        }

    @abstractmethod
    def _fill(self, read: Any, compute: torch.cuda.Stream) -> None:  # noqa: ANN401
        """Fill the cache for the result of `_read`. Runs on the `_side` stream."""

    def _ready_on(self, read: Any, reading: torch.cuda.Stream) -> torch.cuda.Stream:  # noqa: ANN401
        """Fill the cache for a batch on the `_side` stream, if there is one.

        A forward waits for its own batch's fill only, and overlaps with the fill of the next batch. The backward of
        fbgemm's TBE waits for all fills. TBEs count here, never in a lookup: if the statistics show no conflict, a
        lookup reads every row from the cache, but after a prefetch they are those of the next batch.
        """
        if self._side is None:
            return reading
        compute = torch.cuda.current_stream()
        self._side.wait_stream(reading)
        if not self._announced:  # else fbgemm's hook lets it wait for the tables' last backward, and for no more
            self._side.wait_stream(compute)
        set_tbe_counting(self.tbes, enabled=self._counter.enabled)
        for part in read:
            part.record_stream(self._side)
        with self._side:
            self._fill(read, compute)
        set_tbe_counting(self.tbes, enabled=False)
        return self._side

    def _released(self, pooled: KeyedTensor) -> KeyedTensor:
        """Unlock the cache lines of a lookup without backward: else they could never be evicted again."""
        if self._side is not None and not torch.is_grad_enabled():
            torch.cuda.current_stream().wait_stream(self._side)  # the next batch's prefetch locks lines
        for tbe in () if torch.is_grad_enabled() else self.tbes:
            if tbe.prefetch_pipeline and tbe.lxu_cache_weights.numel():
                torch.ops.fbgemm.lxu_cache_locking_counter_decrement(
                    tbe.lxu_cache_locking_counter, tbe.lxu_cache_locations
                )
        return pooled

    def count_traffic(self, enabled: bool) -> None:
        super().count_traffic(enabled)
        set_tbe_counting(self.tbes, enabled=enabled and self._side is None)

    def reset_counters(self) -> None:
        super().reset_counters()
        for tbe in self.tbes:
            tbe.uvm_cache_stats.zero_()
            tbe.cache_miss_counter.zero_()

    def counters(self) -> Counters:
        """Traffic from fbgemm's own statistics.

        LRU: rows fetched are the misses that got a slot; a missed row without one is read per occurrence, and read and
        written once in backward. Every eviction writes back; fbgemm does not count evictions, they are taken as equal
        to insertions, which holds in a full cache. State that is not row-wise is not cached: backward reads and writes
        it once per distinct row. Bytes are None with LFU, which only counts misses.
        """
        counted, spec = self._counter, self.spec
        if spec.device.type == "cpu":
            return counted.counters()
        if spec.parameters["policy"] == "lfu":
            misses = sum(int(tbe.cache_miss_counter[1]) for tbe in self.tbes)
            return counted.counters(unique_misses=misses)
        stats = [tbe.uvm_cache_stats.tolist() for tbe in self.tbes] or [[0] * 6]  # a rank may have no tables
        _, _, unique, misses, conflict_unique, conflict_lookups = map(sum, zip(*stats, strict=True))
        inserted, table = misses - conflict_unique, spec.tables[0]
        fetched = inserted + conflict_lookups + conflict_unique
        written = inserted + conflict_unique
        rowwise = spec.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
        state_bytes = 0 if rowwise else unique * spec.optimizer.state_bytes(table.embedding_dim)
        return counted.counters(
            unique_misses=misses,
            rows_fetched=fetched,
            rows_written_back=written,
            bytes_fetched=row_bytes_of(table) * fetched + state_bytes,
            bytes_written_back=row_bytes_of(table) * written + state_bytes,
        )


class FbgemmUVM(UVM, TBESystem):
    """All rows in host memory, which the GPU reads across the link: the least GPU memory, at the price of speed."""

    same_on_host = "full_gpu"
    location = EmbeddingLocation.MANAGED


class FbgemmUVMCaching(UVMCaching, TBESystem):
    """All rows in host memory, those used last (or most) in fbgemm's cache: for tables larger than GPU memory.

    The cache is 32-way set-associative, on the device, and takes 4 to 12 bytes there for every row.
    """

    same_on_host = "full_gpu"
    location = EmbeddingLocation.MANAGED_CACHING

    def cache_options(self) -> dict[str, Any]:
        return {**super().cache_options(), "cache_sets": cache_sets(self.spec)}

    def _read(self, features: KeyedJaggedTensor) -> Lookup:
        return self._inputs(features)  # counts the batch; fbgemm counts while it fills

    def _fill(self, read: Lookup, compute: torch.cuda.Stream) -> None:
        (tbe,) = self.tbes
        tbe.prefetch(*read, forward_stream=compute)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        pooled = self._look_up(self._take(features)) if self._announced else super().forward(features)
        return self._released(pooled)


def uvm_required_bytes(spec: SystemSpec, *, caching: bool = False) -> dict[Tier, int]:
    """Minimum bytes of a UVM system by tier: row-wise optimizer state is on the device for every row, never cached.

    A cache adds 4 B per row (row to table), with LFU 8 B more per row and once (its counts), and at least one set of 32
    slots.
    """
    if spec.device.type == "cpu":
        return {Tier.HOST: spec.row_bytes + spec.state_bytes}
    rowwise = spec.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
    device = spec.state_bytes if rowwise else 0
    if caching:
        lfu = spec.parameters["policy"] == "lfu"
        device += spec.rows * (12 if lfu else 4) + WAYS * slot_bytes(spec) + 8 * lfu
    return {Tier.DEVICE: device, Tier.HOST: spec.row_bytes + (0 if rowwise else spec.state_bytes)}


def slot_bytes(spec: SystemSpec) -> int:
    """Device bytes per cache slot: a line, the row's number, its stamp, its lock if prefetching."""
    line = row_bytes_of(spec.tables[0])
    stamp = 8 if spec.parameters["policy"] == "lru" else 0
    lock = 4 if spec.parameters.get("prefetch") == "on" else 0
    return line + 8 + stamp + lock


def cache_sets(spec: SystemSpec) -> int:
    """Sets of 32 slots: from the ratio, or one and as many more as fit a byte budget."""
    if isinstance(spec.budget, CacheRatio):
        return max(1, -(-int(spec.rows * spec.budget.ratio) // WAYS))
    # fbgemm has no cache on a CPU and ignores the sets; nothing is subtracted from the budget there
    left = spec.budget.total_bytes - uvm_required_bytes(spec, caching=True).get(Tier.DEVICE, 0)
    return min(-(-spec.rows // WAYS), 1 + left // (WAYS * slot_bytes(spec)))


def set_tbe_counting(tbes: Iterable[TBE], *, enabled: bool) -> None:
    """Switch the statistics of TBEs, which cost a lookup and a sort per batch, on or off."""
    for tbe in tbes:
        if tbe.cache_algorithm is CacheAlgorithm.LRU:
            tbe.gather_uvm_cache_stats = enabled
        else:
            tbe.record_cache_metrics = RecordCacheMetrics(enabled, False)
