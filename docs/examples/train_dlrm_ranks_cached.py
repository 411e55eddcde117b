"""Train a small DLRM on a skewed stream of clicks, on the ranks that torchrun starts, and print every step's loss."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.optimizers import in_backward_optimizer_filter

from systems.contract import OptimizerKind, SparseOptimizer
from systems.sharded.collection import ShardedCachedEmbeddingBagCollection

ROWS = {"user": 50_000, "item": 20_000, "shop": 2_000, "region": 50}
DIM, DENSE_COLUMNS, BATCH_SIZE, LR = 16, 8, 256, 1.0


def batches(steps: int, part: slice) -> Iterator[Batch]:
    """A part of fresh batches: one id per table and sample, low ids far more often than high ones."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        ids = [(rows ** torch.rand(BATCH_SIZE, generator=generator)).long()[part] for rows in ROWS.values()]
        dense = torch.randn(BATCH_SIZE, DENSE_COLUMNS, generator=generator)[part]
        lengths = torch.ones(len(ROWS) * len(dense), dtype=torch.int64)
        features = KeyedJaggedTensor(list(ROWS), torch.cat(ids) - 1, lengths=lengths)
        yield Batch(dense, features, labels=(dense[:, 0] + ids[1] % 2 > 0.5).long())


def learn(steps: int) -> None:
    """Train from the seeds on the ranks of the process group."""
    rank, samples = dist.get_rank(), BATCH_SIZE // dist.get_world_size()
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=DIM)
        for name, rows in ROWS.items()
    ]
    sgd = SparseOptimizer(kind=OptimizerKind.SGD, lr=LR)
    embeddings = ShardedCachedEmbeddingBagCollection(tables, optimizer=sgd, cache_ratio=0.1, placement="rows")
    train = DLRMTrain(DLRM(embeddings, DENSE_COLUMNS, [32, DIM], [32, 1]))
    model = DistributedDataParallel(train)
    optimizer = torch.optim.SGD([weight for _, weight in in_backward_optimizer_filter(model.named_parameters())], lr=LR)

    stream = batches(steps, slice(rank * samples, (rank + 1) * samples))
    for step, batch in enumerate(stream):
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if rank == 0:
            print(f"step {step} loss {loss.item() / dist.get_world_size():.8f}")  # noqa: T201


def main() -> None:
    """Train between joining the other ranks and leaving them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    learn(arguments.steps)
    gc.collect()  # the model: freed after its process group, it can wait for ever (pytorch 75097)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
