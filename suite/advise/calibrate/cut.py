"""A training step cut where rows are pooled: looking up, the dense part, updating, each with a clock of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Seconds of one step: announcing a batch, forward of the embeddings, all but the embeddings, their backward.

    `stages_s` is what the system did meanwhile, by stage, whichever thread did it.
    """

    announce_s: float
    lookup_s: float
    dense_s: float
    update_s: float
    stages_s: dict[str, float]


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

    def __init__(
        self, shape: Shape, tables: tuple[EmbeddingBagConfig, ...], optimizer: SparseOptimizer, seed: int = 0
    ) -> None:
        self._given = _Given(tables)
        self._device = torch.device(shape.device)
        self._model = build_dlrm(
            self._given,
            dense_columns=shape.dense_columns,
            embedding_dim=shape.embedding_dim,
            bottom_mlp=shape.bottom_mlp,
            top_mlp=shape.top_mlp,
            seed=seed,
            device=self._device,
        )
        self._optimizer = dense_optimizer(self._model, optimizer)
        self._criterion = nn.BCEWithLogitsLoss()

    @property
    def model(self) -> nn.Module:
        """The DLRM."""
        model: nn.Module = self._model
        return model

    def step(self, batch: Batch, pooled: KeyedTensor) -> tuple[Tensor, Tensor]:
        """Train the dense part on one batch. Returns the gradient of the pooled rows, and the loss."""
        leaf = pooled.values().detach().requires_grad_(True)
        self._given.pooled = KeyedTensor(pooled.keys(), pooled.length_per_key(), leaf)
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._model(dense_features=batch.dense, sparse_features=batch.features)
        loss = self._criterion(logits.squeeze(-1), batch.labels)
        loss.backward()
        self._optimizer.step()
        gradient = leaf.grad
        assert gradient is not None
        return gradient, loss.detach()


class CutTrainer:
    """Trains a system on batches in order, announced as far ahead as it looks; every step leaves its clocks.

    The step is the real one, in the real order, so that each part finds the processor's caches as it would.
    On a CUDA device every cut waits for the device: work that would overlap there is counted in full.

    Args:
        system: What is measured.
        dense: The rest of the model.
        batches: All of them, on the host.
    """

    def __init__(self, system: EmbeddingSystem, dense: DensePart, batches: Iterator[Batch]) -> None:
        self._system = system
        self._dense = dense
        self._batches = batches
        self._device = system.spec.device
        self._announced: deque[Batch] = deque()
        self._stages: dict[str, float] = {}
        _clock_stages(system, self._stages)

    def step(self) -> tuple[Batch, Clocks]:
        """Train on the next batch."""
        self._stages.clear()
        start = self._now()
        while len(self._announced) <= self._system.look_ahead:
            batch = next(self._batches, None)
            if batch is None:
                break
            batch = self._staged(batch)
            if self._system.look_ahead:
                self._system.prefetch(batch.features)
            self._announced.append(batch)
        batch = self._announced.popleft()
        announced = self._now()
        pooled = self._system(batch.features)
        looked_up = self._now()
        gradient, self.loss = self._dense.step(batch, pooled)
        trained = self._now()
        if pooled.values().requires_grad:
            pooled.values().backward(gradient)
        updated = self._now()
        return batch, Clocks(
            announce_s=announced - start,
            lookup_s=looked_up - announced,
            dense_s=trained - looked_up,
            update_s=updated - trained,
            stages_s=dict(self._stages),
        )

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()

    def _staged(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        features = batch.features if self._system.ids_on_host else batch.features.to(self._device)
        return Batch(batch.dense.to(self._device), features, batch.labels.to(self._device))


PLANNING, MOVING = "planning", "moving"
_STAGES = {"check": PLANNING, "announce": PLANNING, "plan": PLANNING, "move": MOVING}
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
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start

    return clocked
