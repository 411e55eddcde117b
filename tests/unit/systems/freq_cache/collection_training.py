"""A collection of small tables of two widths, trained beside plain torch; ragged batches."""

from typing import Any

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from tests.contract.plain_training import PlainTraining
from tests.contract.scenes import ragged, table
from tests.faults.freq_cache_training import SGD, gradient, learn

TABLES = (table("users", 200, 8, "clicked", "bought"), table("colours", 40, 4), table("shops", 60, 8))
ADAGRAD = SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.5)


def built(tables: tuple[EmbeddingBagConfig, ...] = TABLES, **choices: Any) -> CachedEmbeddingBagCollection:
    budget = {} if "device_bytes" in choices else {"cache_ratio": 0.3}
    return CachedEmbeddingBagCollection(tables, **{"optimizer": SGD, "batch_lookups": 128, **budget, **choices})


def batch(step: int, tables: tuple[EmbeddingBagConfig, ...] = TABLES) -> KeyedJaggedTensor:
    return ragged(step, tables, longest=2)


def train(collection: CachedEmbeddingBagCollection, steps: range) -> None:
    """Train with as many batches announced as may be, and none left over."""
    batches = [batch(step, tuple(collection.spec.tables)) for step in steps]
    for step, features in zip(steps, collection.announced(batches), strict=True):
        learn(collection(features).values(), step)


def frequencies(**changed: Tensor) -> dict[str, Tensor]:
    return {**{t.name: torch.arange(t.num_embeddings) for t in TABLES}, **changed}


class Plain(PlainTraining):
    """Plain training that starts with the rows of a collection."""

    def __init__(self, collection: CachedEmbeddingBagCollection) -> None:
        super().__init__(tuple(collection.spec.tables), collection.spec.optimizer)
        for name, weight in self.weights.items():
            self.weights[name] = torch.arange(weight.numel()).view(weight.shape).double() % 64 / 4
        self._round()
        self.start(collection)

    def train(self, steps: range) -> None:
        for step in steps:
            features = batch(step, self.tables)
            self.step(features, gradient(step, self.pooled(features)))

    def rows(self) -> dict[str, Tensor]:
        found = {f"{name}.weight": weight.float() for name, weight in self.weights.items()}
        found.update({f"{name}.{key}": v.float() for name in self.weights for key, v in self.state(name).items()})
        return found
