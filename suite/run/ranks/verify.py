"""Verification of ranks: they must compute the same as one rank on the same batches.

First as one rank: every rank passes its part of a batch to the system and gathers the pooled vectors of all, so that
all checks of one rank apply, bit for bit where tables pool one id per bag. Then as in training: parts of batches and
data-parallel dense layers, within the tolerance of sums in another order.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor

from suite.records.record import Check, Verification
from suite.run.cell.differences import TOLERANCE, rows_checks
from suite.run.cell.setup import CellSetup
from suite.run.cell.verify import losses_check, started, trainer_of, verify
from suite.run.ranks.group import gathered
from suite.run.ranks.training import RankTrainer, part_of_features, parts_of
from systems.contract import EmbeddingSystem, SystemSpec
from workloads.batch import Workload


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
    ours, theirs = started(system_class(spec), seed), started(system_class.reference(spec), seed)
    on_ranks = trainer_of(ours, workload, seed, feed=parts_of(workload, spec.device), kind=RankTrainer)
    name = f"{kind}: data parallel"
    yield losses_check(f"{name}, losses", on_ranks, trainer_of(theirs, workload, seed), TOLERANCE[kind])
    yield from rows_checks(name, ours, theirs, TOLERANCE[kind])
