"""Shard a DLRM with torchrec's planner, which is told how well each table caches, and train a few steps.

The plan is for a GPU, and is made without one. Without one the model is built on the host, where fbgemm has no caches.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.proposers import EmbeddingOffloadScaleupProposer
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.optimizers import in_backward_optimizer_filter

from suite.records.command_line import parse_bytes
from suite.simulate.planner_inputs import PlannerInputs
from workloads.prepared import PreparedWorkload

DIM, LR = 16, 0.1


def planned(model: DLRM, sharder: EmbeddingBagCollectionSharder, inputs: PlannerInputs, hbm_bytes: int) -> ShardingPlan:
    """Kernels and cache sizes for one GPU. With `--split` the sizes in the file stay; else the planner scales them."""
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=1, compute_device="cuda", hbm_cap=hbm_bytes),
        batch_size=inputs.batch_size,
        constraints=inputs.constraints(),
        proposer=EmbeddingOffloadScaleupProposer() if inputs.slots is None else None,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # --hbm is what the embeddings may have
        stats=NoopEmbeddingStats(),
    )
    return planner.plan(model, [sharder])


def main() -> None:
    """Plan, shard, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="from `suite curves --torchrec`")
    parser.add_argument("--data", type=Path, required=True, help="from `workloads prepare`")
    parser.add_argument("--hbm", default="1GiB", help="device memory for the embeddings")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    logging.getLogger("torchrec").setLevel(logging.ERROR)  # it warns of every table and every way of sharding it
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = PlannerInputs.read(arguments.plan)
    workload = PreparedWorkload.open(arguments.data, batch_size=inputs.batch_size)
    tables = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=table.stats.height, embedding_dim=DIM)
        for name, table in inputs.tables.items()
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    model = DLRM(collection, workload.dense_columns, [32, DIM], [32, 1], dense_device=device)
    sharder = EmbeddingBagCollectionSharder(
        fused_params={
            "optimizer": EmbOptimType.EXACT_SGD,
            "learning_rate": LR,
            "use_one_tbe_per_table": True,  # else all cached tables share one cache, of their mean load factor
        }
    )
    plan = planned(model, sharder, inputs, parse_bytes(arguments.hbm, flag="--hbm"))
    for table, sharding in plan.plan["sparse_arch.embedding_bag_collection"].items():
        factor = sharding.cache_params.load_factor if sharding.cache_params else None
        cache = "" if factor is None else f", load factor {factor:.4f}"
        print(f"{table}: {sharding.compute_kernel}{cache}")  # noqa: T201
        shards = sharding.sharding_spec.shards
        shards[:] = [replace(shard, placement=placement(device.type, rank=0, local_size=1)) for shard in shards]

    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=[sharder])
    optimizer = torch.optim.SGD(
        [weight for _, weight in in_backward_optimizer_filter(sharded.named_parameters())], lr=LR
    )
    for step in range(arguments.steps):
        batch = workload.batch(step)
        optimizer.zero_grad()
        logits = sharded(batch.dense.to(device), batch.features.to(device)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.to(device))
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
