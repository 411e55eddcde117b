"""Data-parallel training around sharded tables: every rank trains on its part of every batch, and is verified so.

Ranks must compute the same as one rank on the same batches. First as one rank: every rank passes its part of a batch to
the system and gathers the pooled vectors of all, so that all checks of one rank apply, bit for bit where tables pool
one id per bag. Then as in training, within the tolerance of sums in another order.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import KeyedJaggedTensor, KeyedTensor

from suite.records.record import Check, Verification
from suite.run.cell.feed import Feed, PreloadedBatches, made_batches
from suite.run.cell.setup import CellSetup
from suite.run.cell.training import StepsRun, Trainer, load_initial_rows
from suite.run.cell.verify import TOLERANCE, losses_check, rows_checks, trainer_of, verify
from systems.contract import EmbeddingSystem, SystemSpec
from workloads.batch import Batch, Workload

Value = TypeVar("Value")


def gathered(tensor: Tensor) -> Tensor:
    """Concatenation of the tensors of all ranks, all of one shape, in order of rank, along the first dimension."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def all_gather_object(value: Value) -> list[Value]:
    """The values of all ranks, in order of rank, transferred as pickles."""
    found: list[Value] = [value] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


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


def parts_of(workload: Workload, device: torch.device, *, on_batch: Callable[[], None] = lambda: None) -> Feed:
    """This rank's parts of training batches: every rank makes whole batches, before timing, and takes its part."""
    parts = made_batches(lambda index: part_of(workload.batch(index)), pin_memory=device.type == "cuda")
    return PreloadedBatches(parts, on_batch=on_batch)


class RankTrainer(Trainer):
    """A trainer of one rank. Its losses are means over all ranks; `logits` takes and returns whole batches."""

    def _wrapped(self, model: nn.Module) -> nn.Module:
        # DDP does not reduce rows: systems hide them from `parameters()`
        return DistributedDataParallel(model, broadcast_buffers=False)

    def run(self, steps: int, **options: Any) -> StepsRun:  # noqa: ANN401 - those of `Trainer.run`
        """Train `steps` more steps."""
        found = super().run(steps, **options)
        losses = torch.tensor(found.loss, dtype=torch.float64)
        dist.all_reduce(losses)
        return replace(found, loss=float(losses) / dist.get_world_size())

    def logits(self, batch: Batch) -> Tensor:
        """Logits of one whole batch, `[batch]`, in evaluation mode; no row changes. Collective."""
        return gathered(super().logits(part_of(batch)))


class AsOne(EmbeddingSystem):
    """Mixin for a sharded system's class: it takes whole batches and returns whole outputs, the same on every rank."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows of a whole batch."""
        part: KeyedTensor = super().forward(self._part(features))  # type: ignore[safe-super] # the system's
        return KeyedTensor(part.keys(), part.length_per_key(), _Gather.apply(part.values()))  # type: ignore[no-untyped-call]

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Announce a whole batch."""
        super().prefetch(self._part(features))

    def _part(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """This rank's part of a batch; the same object for the same features, by which `forward` recognizes it."""
        found = vars(features).get("_part_of_rank")
        if found is None:
            found = features._part_of_rank = part_of_features(features)
        return found


class _Gather(torch.autograd.Function):
    """Gathers parts to whole outputs; backward takes this rank's part of the gradient.

    Every rank has the gradient of the whole batch's mean, and torchrec divides by the number of ranks: undone here.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:  # noqa: ANN401 - torch's signature
        return gathered(part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401 - torch's signature
        ranks = dist.get_world_size()
        return gradient.chunk(ranks)[dist.get_rank()].contiguous() * ranks


def verify_ranks(setup: CellSetup, *, beat: Callable[[], None]) -> Verification:
    """Run every check; collective, with the same result on all ranks."""
    system_class, seed = setup.system_class, setup.cell.round_seed
    as_one = cast(type[EmbeddingSystem], type(f"{system_class.__name__}AsOne", (AsOne, system_class), {}))
    return verify(
        as_one,
        spec=setup.spec,
        workload=setup.workload,
        seed=seed,
        beat=beat,
        bitwise=setup.spec.batch_lookups == setup.cell.batch_size * len(setup.spec.tables),
        further=partial(_data_parallel, system_class, seed),
    )


def _data_parallel(
    system_class: type[EmbeddingSystem], seed: int, spec: SystemSpec, workload: Workload
) -> Iterator[Check]:
    kind = spec.optimizer.kind
    ours, theirs = (load_initial_rows(made, seed=seed) for made in (system_class(spec), system_class.reference(spec)))
    on_ranks = trainer_of(ours, workload, seed, feed=parts_of(workload, spec.device), kind=RankTrainer)
    name = f"{kind}: data parallel"
    yield losses_check(f"{name}, losses", on_ranks, trainer_of(theirs, workload, seed), TOLERANCE[kind])
    yield from rows_checks(name, ours, theirs, TOLERANCE[kind])
