"""Systems that torchrec shards: `DistributedModelParallel` over the ranks of the default process group."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingType

from systems.contract import Counters, Rows, SystemSpec, Tier
from systems.fbgemm.tbe import TBE, load_tbe_rows, read_tbe_rows
from systems.fbgemm.tbe_system import FullGPU
from systems.sharded.placement import Shard, ShardedSystem, place
from systems.torchrec_uvm import TorchrecUVM, TorchrecUVMCaching, tables_in
from systems.unique_counter import UniqueCounter


class TorchrecSharded(ShardedSystem, TorchrecUVM):
    """Rows in the TBEs that torchrec builds on each rank. Subclasses make the plan."""

    pipelined = False

    def __init__(self, spec: SystemSpec) -> None:
        super().__init__(spec)
        self._tbe_of_shard: dict[Shard, tuple[TBE, int]] = {}
        names: dict[TBE, list[str]] = {}
        for table, tbe, index in tables_in(self._sharded[0]):
            names.setdefault(tbe, []).append(table.name)
            shard = Shard(table.name, table.local_metadata.shard_offsets[0], table.local_rows)
            self._tbe_of_shard[shard] = tbe, index
        self._counter = _Received(spec, names)

    @property
    def shards(self) -> Sequence[Shard]:
        return list(self._tbe_of_shard)

    def load_shard(self, shard: Shard, start: int, rows: Rows) -> None:
        tbe, index = self._tbe_of_shard[shard]
        load_tbe_rows(tbe, table=index, start=start, rows=rows)

    def read_shard(self, shard: Shard, ids: Tensor) -> Rows:
        tbe, index = self._tbe_of_shard[shard]
        return read_tbe_rows(tbe, table=index, ids=ids)


class ShardedFullGPU(TorchrecSharded):
    """Every row on the device of some rank: whole tables, of even bytes, or each table's rows in equal ranges."""

    variants = {"sharding": ("table_wise", "row_wise")}
    whole_tables = {"sharding": "table_wise"}
    kernel = EmbeddingComputeKernel.FUSED
    host_rows_are = Tier.DEVICE

    @classmethod
    def required_bytes(cls, spec: SystemSpec) -> dict[Tier, int]:
        return FullGPU.required_bytes(spec)

    def plan(
        self, collection: EmbeddingBagCollection, sharder: EmbeddingBagCollectionSharder
    ) -> EmbeddingModuleShardingPlan:
        kernel = self.kernel.value
        if self.spec.parameters["sharding"] == "row_wise":
            how = {table.name: row_wise(compute_kernel=kernel) for table in self.spec.tables}
        else:
            layout = place(self.spec.tables, how="tables", ranks=dist.get_world_size())
            ranks = {shard.table: rank for rank, shards in enumerate(layout) for shard in shards}
            how = {name: table_wise(rank=rank, compute_kernel=kernel) for name, rank in ranks.items()}
        return construct_module_sharding_plan(collection, how, sharder=sharder, device_type=self.spec.device.type)

    def counters(self) -> Counters:
        return self._counter.looked_up_in_place()


class ShardedTorchrecUVMCaching(TorchrecSharded, TorchrecUVMCaching):
    """Rows in UVM behind fbgemm's cache; torchrec's planner chooses ranks, table-wise or (on CUDA) row-wise.

    On a CPU the planner has no UVM to plan: it plans tables in host memory, which is what torchrec builds there.
    """

    variants = {**TorchrecUVMCaching.variants, "prefetch": ("off",)}

    def plan(
        self, collection: EmbeddingBagCollection, sharder: EmbeddingBagCollectionSharder
    ) -> EmbeddingModuleShardingPlan:
        device = self.spec.device
        room = {"ddr_cap": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // get_local_size()}
        if device.type == "cuda":
            room["hbm_cap"] = torch.cuda.get_device_properties(device).total_memory
        kernel = self.kernel if device.type == "cuda" else EmbeddingComputeKernel.FUSED
        constraint = ParameterConstraints(
            sharding_types=[ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value], compute_kernels=[kernel.value]
        )
        planner = EmbeddingShardingPlanner(
            topology=Topology(
                world_size=dist.get_world_size(), compute_device=device.type, local_world_size=get_local_size(), **room
            ),
            constraints={table.name: constraint for table in self.spec.tables},
            debug=False,
        )
        plan = planner.collective_plan(nn.Sequential(collection), [sharder], dist.group.WORLD)
        return plan.plan["0"]


class _Received(UniqueCounter):
    """Counts ids that this rank's TBEs look up for all ranks; `names` are the tables of each TBE, in its order."""

    def __init__(self, spec: SystemSpec, names: Mapping[TBE, Sequence[str]]) -> None:
        super().__init__(spec.tables)
        for tbe, tables in names.items():
            of_feature = [tables[index] for index in tbe.feature_table_map]
            tbe.register_forward_pre_hook(partial(self._observe_received, of_feature), with_kwargs=True)

    def observe(self, features: KeyedJaggedTensor) -> None:
        """Count the step only; a hook on the TBEs counts the ids that this rank receives."""
        self.steps += self.enabled

    def _observe_received(
        self, of_feature: Sequence[str], _: TBE, inputs: tuple[Any, ...], named: dict[str, Tensor]
    ) -> None:
        if not self.enabled:
            return
        ids, offsets = named["indices"], named["offsets"]
        ends = offsets[:: (offsets.numel() - 1) // len(of_feature)].tolist()
        parts: dict[str, list[Tensor]] = {}
        for name, start, stop in zip(of_feature, ends, ends[1:], strict=False):
            parts.setdefault(name, []).append(ids[start:stop])
        for name, found in parts.items():
            self._count(name, found)
