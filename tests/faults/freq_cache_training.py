"""Small tables trained by the cache and plainly, for tests of what can go wrong.

Rows, gradients and learning rate are multiples of small powers of two, so that plain training is exact: equal means
equal to the last bit.
"""

from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from tests.contract.plain_training import PlainTraining
from tests.contract.scenes import batch_of, table

LOOK_AHEAD = pytest.mark.parametrize("look_ahead", [0, 2])

TABLES = (table("users", 300, 8), table("shops", 100, 8, "from", "to"))
TWO_WIDTHS = (table("users", 60, 8), table("shops", 40, 4))
SGD = SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5)
ADAGRAD = SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.5)


def batch(step: int, tables: tuple[Any, ...] = TABLES) -> KeyedJaggedTensor:
    """Few enough distinct rows to fit the slots, too many for those of two batches to fit."""
    draw = torch.Generator().manual_seed(step)
    features = [(name, t.num_embeddings) for t in tables for name in t.feature_names]
    return batch_of({name: torch.randint(0, rows, (5, 2), generator=draw).tolist() for name, rows in features})


def gradient(step: int, pooled: Tensor) -> Tensor:
    return torch.randint(-4, 5, pooled.shape, generator=torch.Generator().manual_seed(step)).float()


class Plain(PlainTraining):
    """Plain training from rows that are all different."""

    def __init__(self, tables: tuple[Any, ...] = TABLES) -> None:
        super().__init__(tables, SGD)
        for at, (name, weight) in enumerate(self.weights.items()):
            self.weights[name] = torch.arange(weight.numel()).view(weight.shape).double() / 8 + 1000 * at

    @classmethod
    def of(cls, collection: CachedEmbeddingBagCollection) -> Self:
        """Plain training of the tables of a collection, which is given its rows."""
        plain = cls(tuple(collection.spec.tables))
        plain.start(collection)
        return plain

    def train(self, steps: range) -> None:
        for step in steps:
            self.step(batch(step, self.tables), gradient(step, self.pooled(batch(step, self.tables))))

    def rows(self) -> dict[str, Tensor]:
        return {f"{name}.weight": weight.float() for name, weight in self.weights.items()}


def plain_after(steps: int, tables: tuple[Any, ...] = TABLES) -> dict[str, Tensor]:
    """All rows after steps 0 to `steps - 1`."""
    plain = Plain(tables)
    plain.train(range(steps))
    return plain.rows()


def built(tables: tuple[Any, ...] = TABLES, **more) -> CachedEmbeddingBagCollection:
    choices = {"optimizer": SGD, "seed": None, "batch_lookups": 32, "policy": "lru"}
    budget = {} if "device_bytes" in more else {"cache_ratio": 0.1}
    return CachedEmbeddingBagCollection(tables, **{**choices, **budget, **more})


def started(tables: tuple[Any, ...] = TABLES, **choices: object) -> CachedEmbeddingBagCollection:
    collection = built(tables, **choices)
    Plain(tables).start(collection)
    return collection


def failing_once(original: Callable[..., Any], error: BaseException, *, at: int = 1) -> Callable[..., Any]:
    """As `original`, but the call of number `at` raises."""
    calls = []

    def call(*arguments: object, **named: object) -> object:
        calls.append(None)
        if len(calls) == at:
            raise error
        return original(*arguments, **named)

    return call


def learn(pooled: Tensor, step: int) -> None:
    (pooled * gradient(step, pooled)).sum().backward()


def train(
    collection: CachedEmbeddingBagCollection, steps: range, after: Callable[[int], None] = lambda step: None
) -> None:
    """Train with as many batches announced as may be; `after` each step."""
    batches = {step: batch(step, tuple(collection.spec.tables)) for step in steps}
    for step in steps:
        if collection.look_ahead:
            first = step == steps.start
            for ahead in range(step if first else step + collection.look_ahead, step + collection.look_ahead + 1):
                if ahead in batches:
                    collection.prefetch(batches[ahead])
        learn(collection(batches[step]).values(), step)
        after(step)
