"""A training step cut where rows are pooled: looking up, the dense part, updating, each with a clock of its own."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from suite.advise.shape import Shape
from suite.run.cell.training import dense_optimizer, synchronize
from systems.contract import EmbeddingSystem, SparseOptimizer
from systems.freq_cache.cache import Cache
from workloads.batch import Batch
from workloads.dlrm import build_dlrm


class _Given(nn.Module):
    """Stands where an embedding collection would and hands out what it was given."""

    def __init__(self, tables: tuple[EmbeddingBagConfig, ...]) -> None:
        super().__init__()
        self._tables = tables
        self.pooled: KeyedTensor | None = None

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return list(self._tables)

    def is_weighted(self) -> bool:
        return False

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        return self.pooled


class DensePart:
    """The DLRM of a shape without its embeddings: pooled rows go in, their gradient comes out."""

    def __init__(self, shape: Shape, tables: tuple[EmbeddingBagConfig, ...], optimizer: SparseOptimizer) -> None:
        self._given = _Given(tables)
        self.model: nn.Module = build_dlrm(
            self._given,
            dense_columns=shape.dense_columns,
            embedding_dim=shape.embedding_dim,
            bottom_mlp=shape.bottom_mlp,
            top_mlp=shape.top_mlp,
            seed=0,
            device=torch.device(shape.device),
        )
        self._optimizer = dense_optimizer(self.model, optimizer)
        self._criterion = nn.BCEWithLogitsLoss()

    def step(self, batch: Batch, pooled: KeyedTensor) -> tuple[Tensor, Tensor]:
        """Train the dense part on one batch. Returns the gradient of the pooled rows, and the loss."""
        leaf = pooled.values().detach().requires_grad_(True)
        self._given.pooled = KeyedTensor(pooled.keys(), pooled.length_per_key(), leaf)
        self._optimizer.zero_grad(set_to_none=True)
        logits = self.model(dense_features=batch.dense, sparse_features=batch.features)
        loss = self._criterion(logits.squeeze(-1), batch.labels)
        loss.backward()
        self._optimizer.step()
        assert leaf.grad is not None
        return leaf.grad, loss.detach()


class CutTrainer:
    """Trains a system on batches (on the host) in order, announced as far ahead as it looks.

    The step is the real one, in the real order, so that each part finds the processor's caches as it would.
    On a CUDA device every cut waits for the device: work that would overlap there is counted in full.
    """

    def __init__(self, system: EmbeddingSystem, dense: DensePart, batches: Iterator[Batch]) -> None:
        self.system = system
        self._dense = dense
        self._batches = batches
        self._device = system.spec.device
        self._announced: deque[Batch] = deque()
        self._stages_s: dict[str, float] = {}
        _clock_stages(system, self._stages_s)

    def step(self) -> dict[str, float]:
        """Train on the next batch.

        Returns:
            Seconds of announcing a batch, of the embeddings' forward, of all but the embeddings, and of their backward:
            `announce_s`, `lookup_s`, `dense_s`, `update_s`; and of what our own cache did meanwhile, whichever thread
            did it: `planning_s`, `moving_s`.
        """
        self._stages_s.update(planning_s=0.0, moving_s=0.0)
        start = self._now()
        while len(self._announced) <= self.system.look_ahead:
            batch = next(self._batches, None)
            if batch is None:
                break
            batch = self._staged(batch)
            if self.system.look_ahead:
                self.system.prefetch(batch.features)
            self._announced.append(batch)
        batch = self._announced.popleft()
        announced = self._now()
        pooled = self.system(batch.features)
        looked_up = self._now()
        gradient, self.loss = self._dense.step(batch, pooled)
        trained = self._now()
        if pooled.values().requires_grad:
            pooled.values().backward(gradient)
        updated = self._now()
        return {
            "announce_s": announced - start,
            "lookup_s": looked_up - announced,
            "dense_s": trained - looked_up,
            "update_s": updated - trained,
            **self._stages_s,
        }

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()

    def _staged(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        features = batch.features if self.system.ids_on_host else batch.features.to(self._device)
        return Batch(batch.dense.to(self._device), features, batch.labels.to(self._device))


_STAGES = {"distinct": "planning_s", "announce": "planning_s", "plan": "planning_s", "move": "moving_s"}
"""Of a `Cache`, by method."""


def _clock_stages(system: EmbeddingSystem, seconds: dict[str, float]) -> None:
    """Have the caches of our own system tell how long they plan and move rows. Other systems show no such seams."""
    for cache in getattr(system, "caches", ()):
        if isinstance(cache, Cache):
            for name, stage in _STAGES.items():
                setattr(cache, name, _clocked(getattr(cache, name), stage, seconds))


def _clocked(method: Callable[..., Any], stage: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def clocked(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - passed on as they are
        start = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            seconds[stage] += time.perf_counter() - start

    return clocked
