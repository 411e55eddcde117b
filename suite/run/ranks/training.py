"""Data-parallel dense layers around sharded tables: every rank trains on its part of every batch."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import KeyedJaggedTensor

from suite.run.cell.feed import Feed, PreloadedBatches
from suite.run.cell.training import Run, Trainer
from suite.run.ranks.group import gathered, mean
from systems.contract import EmbeddingSystem
from workloads.batch import Batch, Workload


def part_of_features(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """This rank's samples of a batch: with two ranks, the first or the second half."""
    start, stop = _part(features.stride())
    size, keys = features.stride(), features.keys()
    offsets = features.offsets()
    ends = zip(offsets[start::size].tolist(), offsets[stop::size].tolist(), strict=False)
    values = torch.cat([features.values()[first:last] for first, last in list(ends)[: len(keys)]])
    lengths = features.lengths().view(len(keys), size)[:, start:stop].flatten()
    return KeyedJaggedTensor(keys, values, lengths=lengths, stride=stop - start)


def part_of(batch: Batch) -> Batch:
    """This rank's part of a batch.

    Raises:
        ValueError: the batch cannot be split into parts of equal length.
    """
    start, stop = _part(len(batch.labels))
    return Batch(batch.dense[start:stop], part_of_features(batch.features), batch.labels[start:stop])


def _part(samples: int) -> tuple[int, int]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if samples % ranks:
        raise ValueError(f"a batch of {samples} samples cannot be shared by {ranks} ranks: give another --batch-size")
    return samples // ranks * rank, samples // ranks * (rank + 1)


def parts_of(workload: Workload, device: torch.device) -> Feed:
    """This rank's parts of training batches: every rank makes whole batches, before timing, and takes its part."""
    return PreloadedBatches(lambda index: part_of(workload.batch(index)), pin_memory=device.type == "cuda").reader()


class RankTrainer(Trainer):
    """A trainer of one rank. Its losses are means over all ranks; `logits` takes and returns whole batches."""

    def __init__(
        self,
        model: nn.Module,
        system: EmbeddingSystem,
        **options: Any,  # noqa: ANN401 - those of `Trainer`
    ) -> None:
        # DDP does not reduce rows: systems hide them from `parameters()`
        super().__init__(DistributedDataParallel(model, broadcast_buffers=False), system, **options)

    def run(self, steps: int, **options: Any) -> Run:  # noqa: ANN401 - those of `Trainer.run`
        """Train `steps` more steps."""
        found = super().run(steps, **options)
        return replace(found, loss=mean(found.loss))

    def logits(self, batch: Batch) -> Tensor:
        """Logits of one whole batch, `[batch]`, in evaluation mode; no row changes. Collective."""
        return gathered(super().logits(part_of(batch)))
