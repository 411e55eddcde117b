"""Training a DLRM around a system: one step, and runs of steps with one device synchronisation at each end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.models.dlrm import DLRM

from systems.contract import EmbeddingSystem, OptimizerKind, Rows, SparseOptimizer
from workloads.batch import Batch, Split, Workload
from workloads.dlrm import initial_rows

_INIT_ROWS = 1 << 20

OnStep = Callable[[int], None]


def tables_of(workload: Workload, embedding_dim: int) -> tuple[EmbeddingBagConfig, ...]:
    """The workload's tables as torchrec describes them: one feature each, sum pooling."""
    return tuple(
        EmbeddingBagConfig(
            name=name, embedding_dim=embedding_dim, num_embeddings=rows, feature_names=[name], pooling=PoolingType.SUM
        )
        for name, rows in workload.tables
    )


def load_initial_rows(system: EmbeddingSystem, *, seed: int, on_chunk: Callable[[], None] = lambda: None) -> None:
    """Give every system the same start, a million rows at a time."""
    for index, table in enumerate(system.spec.tables):
        rows = table.num_embeddings
        for start in range(0, rows, _INIT_ROWS):
            stop = min(start + _INIT_ROWS, rows)
            chunk = initial_rows(table=index, rows=rows, dim=table.embedding_dim, seed=seed, start=start, stop=stop)
            system.load_rows(table.name, start, Rows(chunk))
            on_chunk()


def dense_optimizer(model: nn.Module, optimizer: SparseOptimizer) -> torch.optim.Optimizer:
    """The dense counterpart of the sparse optimizer, over the MLPs: a system owns the update of its rows."""
    parameters = [p for name, p in model.named_parameters() if not name.startswith("sparse_arch.")]
    match optimizer.kind:
        case OptimizerKind.SGD:
            return torch.optim.SGD(parameters, lr=optimizer.lr)
        case OptimizerKind.ROWWISE_ADAGRAD | OptimizerKind.ADAGRAD:
            return torch.optim.Adagrad(parameters, lr=optimizer.lr, eps=optimizer.eps)
        case OptimizerKind.ADAM:
            betas = (optimizer.beta1, optimizer.beta2)
            return torch.optim.Adam(parameters, lr=optimizer.lr, eps=optimizer.eps, betas=betas)


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next means what it says. A CPU has nothing in flight."""
    if device.type == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Run:
    """A run of steps. `loss` is that of its last step; `data_s` went by before the clock started."""

    steps: int
    duration_s: float
    data_s: float
    loss: float


class Trainer:
    """Trains on batches 0, 1, 2, ... of a workload's training split, each used once.

    Batches are made before the clock of a run starts, those that the system's look-ahead reaches into included. Copies
    to the device are part of the run.
    """

    def __init__(self, model: DLRM, system: EmbeddingSystem, *, workload: Workload, total_steps: int) -> None:
        self._model = model
        self._system = system
        self._workload = workload
        self._total = total_steps
        self._device = system.spec.device
        self._optimizer = dense_optimizer(model, system.spec.optimizer)
        self._criterion = nn.BCEWithLogitsLoss()
        self._made = 0
        self._ready: deque[Batch] = deque()
        self._announced: deque[Batch] = deque()

    def run(self, steps: int, on_step: OnStep = lambda _: None) -> Run:
        """Train `steps` more steps."""
        data_s = self._make(steps + self._system.look_ahead)
        self._model.train()
        loss = torch.zeros(())
        synchronize(self._device)  # nothing of an earlier run may finish on this one's time
        start = time.perf_counter()
        for step in range(steps):
            loss = self._step(self._next())
            on_step(step + 1)
        synchronize(self._device)  # work still in flight belongs to this run
        duration_s = time.perf_counter() - start
        return Run(steps=steps, duration_s=duration_s, data_s=data_s, loss=float(loss))

    def logits(self, batch: Batch) -> Tensor:
        """Logits of one batch, `[batch]`, without touching anything."""
        self._model.eval()
        with torch.no_grad():
            return self._forward(self._staged(batch))

    def _step(self, batch: Batch) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss: Tensor = self._criterion(self._forward(batch), batch.labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def _forward(self, batch: Batch) -> Tensor:
        logits: Tensor = self._model(dense_features=batch.dense, sparse_features=batch.features)
        return logits.squeeze(-1)

    def _make(self, steps: int) -> float:
        """Make batches until `steps` wait, short of the end. Returns the seconds that took."""
        start = time.perf_counter()
        while len(self._ready) + len(self._announced) < steps and self._made < self._total:
            batch = self._workload.batch(self._made, Split.TRAIN)
            self._ready.append(_pinned(batch) if self._device.type == "cuda" else batch)
            self._made += 1
        return time.perf_counter() - start

    def _next(self) -> Batch:
        """The next batch, after announcing those behind it as far as the system looks ahead."""
        while self._ready and len(self._announced) <= self._system.look_ahead:
            batch = self._staged(self._ready.popleft())
            if self._system.look_ahead:
                self._system.prefetch(batch.features)
            self._announced.append(batch)
        return self._announced.popleft()

    def _staged(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        features = batch.features if self._system.ids_on_host else batch.features.to(self._device, non_blocking=True)
        dense = batch.dense.to(self._device, non_blocking=True)
        return Batch(dense, features, batch.labels.to(self._device, non_blocking=True))


def _pinned(batch: Batch) -> Batch:
    batch.features.length_per_key()  # cached here and carried along; asked of ids on the device it would wait for them
    return Batch(batch.dense.pin_memory(), batch.features.pin_memory(), batch.labels.pin_memory())
