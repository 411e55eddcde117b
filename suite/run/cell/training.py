"""Training a DLRM around a system: one step, and runs of steps with one device synchronisation at each end."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, PoolingType

from suite.run.cell.feed import DevicePrefetcher, Feed
from systems.contract import EmbeddingSystem, OptimizerKind, Rows, SparseOptimizer
from systems.threads import Worker
from workloads.batch import Batch, Workload
from workloads.dlrm import INITIAL_ROWS, build_dlrm, fill_initial_rows

_LOADED_ROWS = 1 << 20

TOGETHER = 16
"""Steps per run of a cell: their batches are made before the run, and are in memory at the same time."""

OnStep = Callable[[int], None]
OnScores = Callable[[Tensor, Tensor, Tensor], None]
"""Called with logits `[batch]`, labels `[batch]` and loss of a trained batch; the logits are from before the update."""


def tables_of(tables: Iterable[tuple[str, int]], embedding_dim: int) -> tuple[EmbeddingBagConfig, ...]:
    """Configurations for torchrec of tables given by name and rows: one feature each, sum pooling."""
    return tuple(
        EmbeddingBagConfig(
            name=name,
            embedding_dim=embedding_dim,
            num_embeddings=rows,
            feature_names=[name],
            pooling=PoolingType.SUM,
        )
        for name, rows in tables
    )


def load_initial_rows(
    system: EmbeddingSystem, *, seed: int, on_chunk: Callable[[], None] = lambda: None
) -> EmbeddingSystem:
    """Load the same initial rows into every system, a million at a time, made by all cores. Returns the system.

    One whose rows cannot be loaded initializes itself from the seed.
    """
    if system.start(seed):
        return system
    with closing(Worker("first rows", threads=torch.get_num_threads())) as threads:
        for index, table in enumerate(system.spec.tables):
            fill = partial(fill_initial_rows, table=index, rows=table.num_embeddings, seed=seed)
            for start in range(0, table.num_embeddings, _LOADED_ROWS):
                made = torch.empty(min(_LOADED_ROWS, table.num_embeddings - start), table.embedding_dim)
                parts = enumerate(made.split(INITIAL_ROWS))
                filled = [threads.submit(partial(fill, part, start=start + at * INITIAL_ROWS)) for at, part in parts]
                for one in filled:
                    one.result()
                system.load_rows(table.name, start, Rows(made))
                on_chunk()
    return system


def dense_optimizer(model: nn.Module, optimizer: SparseOptimizer) -> torch.optim.Optimizer:
    """The dense counterpart of the sparse optimizer, over the MLPs: a system owns the update of its rows."""
    parameters = [p for name, p in model.named_parameters() if not name.startswith("sparse_arch.")]
    if optimizer.kind is OptimizerKind.SGD:
        return torch.optim.SGD(parameters, lr=optimizer.lr)
    if optimizer.kind is OptimizerKind.ADAM:
        betas = (optimizer.beta1, optimizer.beta2)
        return torch.optim.Adam(parameters, lr=optimizer.lr, eps=optimizer.eps, betas=betas)
    return torch.optim.Adagrad(parameters, lr=optimizer.lr, eps=optimizer.eps)


def multiply_in(*, tf32: bool) -> None:
    """Set the precision of dense layers' matrix products on a CUDA device: TF32 or fp32."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


@contextmanager
def fixed_order(device: torch.device) -> Iterator[None]:
    """Within it, kernels of a CUDA device add in the same order every time, and are slower.

    Else fbgemm adds the gradients of a row with more than 1,024 lookups in any order.
    """
    # else new memory is filled, where a thread of a system may write already
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property of the module
    torch.use_deterministic_algorithms(device.type == "cuda", warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def synchronize(device: torch.device) -> None:
    """Wait for all queued work of a CUDA device, so that timings include it. A CPU has nothing in flight."""
    if device.type == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class StepsRun:
    """A run of steps.

    Attributes:
        duration_s: Seconds from synchronisation to synchronisation.
        data_s: Seconds of making batches before the timed steps.
        wait_s: Seconds of `duration_s` in which the training thread waited for batches.
        loss: Loss of the last step.
    """

    duration_s: float
    data_s: float
    wait_s: float
    loss: float


class Trainer:
    """Trains on batches 0, 1, 2, ... of a workload's training split, each used once.

    Waiting for batches is part of a run, and measured. A batch is copied to the device while the previous step
    computes; the copy of a run's first batch starts before the timed steps.

    Args:
        system: A loaded system; the trainer announces coming batches to it, as far as its look-ahead.
        workload: The DLRM has its dense columns.
        bottom_mlp, top_mlp, seed: Of the DLRM around the system; see `build_dlrm`.
        feed: Source of the batches.
        total_steps: Steps of all runs; later batches are not announced.
    """

    def __init__(
        self,
        system: EmbeddingSystem,
        workload: Workload,
        *,
        bottom_mlp: tuple[int, ...],
        top_mlp: tuple[int, ...],
        seed: int,
        feed: Feed,
        total_steps: int,
    ) -> None:
        self._system = system
        self._device = system.spec.device
        model = build_dlrm(
            system,
            dense_columns=workload.dense_columns,
            embedding_dim=system.spec.tables[0].embedding_dim,
            bottom_mlp=bottom_mlp,
            top_mlp=top_mlp,
            seed=seed,
            device=self._device,
        )
        self._model = self._wrapped(model)
        self._optimizer = dense_optimizer(self._model, system.spec.optimizer)
        self._criterion = nn.BCEWithLogitsLoss()
        self._batches = DevicePrefetcher(feed, total=total_steps, device=self._device, ids_on_host=system.ids_on_host)
        self._announced: deque[Batch] = deque()

    def _wrapped(self, model: nn.Module) -> nn.Module:
        """The model as it is trained."""
        return model

    def run(
        self,
        steps: int,
        *,
        lead_steps: int = 0,
        on_step: OnStep = lambda _: None,
        on_scores: OnScores | None = None,
        embeddings_only: bool = False,
    ) -> StepsRun:
        """Train `lead_steps` untimed and then `steps` timed; with `embeddings_only` without the MLPs, on a sum."""
        data_s = self._batches.fill(lead_steps + steps + self._system.look_ahead - len(self._announced))
        self._model.train()
        loss, start, waited_s = torch.zeros(()), 0.0, 0.0
        scores: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(-lead_steps, steps):
            if step == 0:
                synchronize(self._device)  # else work of an earlier step would count as this run's time
                start, waited_s = time.perf_counter(), self._batches.waited_s
            batch = self._next()
            if embeddings_only:
                loss = self._embedding_step(batch)
            else:
                logits, loss = self._step(batch)
                if on_scores is not None:
                    scores.append((logits, batch.labels, loss))
            on_step(step + 1)
        synchronize(self._device)  # work still in flight belongs to this run
        duration_s, waited_s = time.perf_counter() - start, self._batches.waited_s - waited_s
        if on_scores is not None:
            for of_batch in scores:  # behind the clock: scoring is the harness's work
                on_scores(*of_batch)
        return StepsRun(duration_s=duration_s, data_s=data_s, wait_s=waited_s, loss=float(loss))

    def logits(self, batch: Batch) -> Tensor:
        """Logits of one batch, `[batch]`, in evaluation mode; no row changes."""
        self._model.eval()
        with torch.no_grad():
            return self._forward(self._batches.bring(batch))

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Train one step. Returns logits from before the update, `[batch]`, and loss."""
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._forward(batch)
        loss: Tensor = self._criterion(logits, batch.labels)
        loss.backward()
        self._optimizer.step()
        return logits.detach(), loss.detach()

    def _embedding_step(self, batch: Batch) -> Tensor:
        pooled: Tensor = self._system(batch.features).values()
        loss: Tensor = self._criterion(pooled.sum(dim=1) / math.sqrt(pooled.shape[1]), batch.labels)
        if loss.requires_grad:  # a control has no rows to train
            loss.backward()
        return loss.detach()

    def _forward(self, batch: Batch) -> Tensor:
        logits: Tensor = self._model(dense_features=batch.dense, sparse_features=batch.features)
        return logits.squeeze(-1)

    def _next(self) -> Batch:
        """The next batch, after announcing the batches that follow it, as far as the system's look-ahead."""
        while self._batches.left and len(self._announced) <= self._system.look_ahead:
            batch = self._batches.take()
            arrived = self._batches.ids_arrived
            if self._system.look_ahead and arrived is not None:
                self._system.prefetch_behind(batch.features, arrived)
            elif self._system.look_ahead:
                self._system.prefetch(batch.features)
            self._announced.append(batch)
        return self._announced.popleft()
