"""UVM set up by torchrec: `DistributedModelParallel` around an `EmbeddingBagCollection`, every table pinned to UVM.

The plan is written by hand, so no planner can promote a table to the device. One process, one rank. On a CPU torchrec
silently builds HOST tables for the same plan; `placement` is read from the live TBEs and reports that.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from systems.fbgemm.tbe import TBE, WAYS, count_updates_alone, optimizer_options
from systems.fbgemm.uvm import UVM, UVMCaching, cache_sets
from systems.spec import SystemSpec


class TorchrecUVM(UVM):
    """All rows in host memory as fbgemm_uvm has them, for models that torchrec shards: little GPU memory, and slow."""

    kernel = EmbeddingComputeKernel.FUSED_UVM
    pipelined = True
    """On a CUDA device, ids are distributed a step ahead, on a stream of their own, as `TrainPipelineSparseDist` does.
    Else the host would wait there for the step before: torchrec copies numbers from pageable memory."""

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        _ensure_process_group(spec.device)
        collection = EmbeddingBagCollection(tables=list(spec.tables), device=torch.device("meta"))
        sharder = EmbeddingBagCollectionSharder(fused_params=self.fused_parameters())
        parallel = DistributedModelParallel(
            nn.Sequential(collection),  # torchrec shards the children of the module that it is given
            device=spec.device,
            plan=ShardingPlan({"0": self.plan(collection, sharder)}),
            sharders=[sharder],
            init_data_parallel=False,
        )
        # A tuple hides the module from `parameters()`: the update is fused, a dense optimizer must not see the rows.
        self._sharded: tuple[Any] = (parallel.module[0],)
        self._hold({table.name: (tbe, index) for table, tbe, index in tables_in(self._sharded[0])})
        for tbe in self.tbes:
            count_updates_alone(tbe)

    def plan(
        self, collection: EmbeddingBagCollection, sharder: EmbeddingBagCollectionSharder
    ) -> EmbeddingModuleShardingPlan:
        """Sharding plan: every table on rank 0 with `kernel`."""
        how = {name: table_wise(rank=0, compute_kernel=self.kernel.value) for name in self.tables}
        return construct_module_sharding_plan(collection, how, sharder=sharder, device_type=self.spec.device.type)

    def fused_parameters(self) -> dict[str, Any]:
        """Arguments that torchrec passes on to the TBE's constructor; unknown names pass through."""
        return {
            **optimizer_options(self.spec.optimizer),
            **self.cache_options(),
            "bounds_check_mode": BoundsCheckMode.FATAL,
            "stochastic_rounding": False,
        }

    def _read(self, features: KeyedJaggedTensor) -> tuple[KeyedJaggedTensor, Any, Any]:
        """A batch in one order of features, the context of its input distribution, and what comes of that."""
        # torchrec applies the key order of the first batch to all later ones, so every batch is reordered to one order
        (ordered,) = self._groups.split(features)
        if self._side is not None:
            self._counter.observe(ordered)
        context = self._sharded[0].create_context()
        return ordered, context, self._sharded[0].input_dist(context, ordered).wait().wait()

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        ordered, context, distributed = self._take(features) if self._announced else self._read(features)
        if self._side is None:
            self._counter.observe(ordered)
        return self._in_table_order(self._sharded[0].compute_and_output_dist(context, distributed).wait())

    def _in_table_order(self, pooled: KeyedTensor) -> KeyedTensor:
        names = self._groups.names
        if pooled.keys() == names:
            return pooled
        parts = pooled.to_dict()
        return self._groups.join([torch.cat([parts[name] for name in names], dim=1)])


class TorchrecUVMCaching(UVMCaching, TorchrecUVM):
    """All rows in host memory behind fbgemm's cache, for models that torchrec shards, larger than GPU memory.

    `prefetch=on` (LRU only) runs what torchrec's `PrefetchTrainPipelineSparseDist` runs: input distribution of the
    next batch on one stream and its cache prefetch on another, while the current batch computes.
    """

    same_on_host = "torchrec_uvm"
    kernel = EmbeddingComputeKernel.FUSED_UVM_CACHING

    def fused_parameters(self) -> dict[str, Any]:
        # torchrec takes a load factor: this one gives `cache_sets` sets after fbgemm's own rounding
        return {
            **super().fused_parameters(),
            "cache_load_factor": min(1.0, WAYS * cache_sets(self.spec) / self.spec.rows),
        }

    def _fill(self, read: tuple[KeyedJaggedTensor, Any, Any], compute: torch.cuda.Stream) -> None:
        _, context, distributed = read
        self._sharded[0].prefetch(distributed, forward_stream=compute, ctx=context)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        return self._released(super().forward(features))


def _ensure_process_group(device: torch.device) -> None:
    """Create a process group of one rank, if there is none; a store in memory needs no port."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined] # missing from torch's list of exports
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def tables_in(sharded: ShardedEmbeddingBagCollection) -> Iterator[tuple[Any, TBE, int]]:
    """The tables or shards on this rank: torchrec's configuration of each, its TBE, and its index in that TBE."""
    for lookup in sharded._lookups:
        for kernel in lookup._emb_modules:
            for index, table in enumerate(kernel._config.embedding_tables):
                yield table, kernel.emb_module, index
