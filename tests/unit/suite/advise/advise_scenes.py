"""What the tests of the advisor share: a small shape, a stream."""

import numpy as np

from suite.advise.case import Case, Shape
from suite.simulate.trace import Trace
from systems.contract import Budget, CacheRatio
from systems.freq_cache.cache.plan import Ids

TABLES = (("first", 500), ("second", 300), ("third", 20))


def shape(**changes: object) -> Shape:
    """Three tables of 820 rows, batches of 64."""
    values: dict[str, object] = {
        "tables": 3,
        "embedding_dim": 16,
        "batch_size": 64,
        "dense_columns": 4,
        "bottom_mlp": (8,),
        "top_mlp": (8, 1),
        "optimizer": "sgd",
        "device": "cpu",
    }
    return Shape.model_validate(values | changes)


def case(system: str, *, budget: Budget | None = None, **changes: object) -> Case:
    """A system on these tables."""
    of = shape(**changes)
    return Case(
        system=system,
        shape=of,
        tables=TABLES,
        batch_lookups=3 * of.batch_size,
        budget=budget or CacheRatio(ratio=0.5),
    )


class PowerTrace(Trace):
    """Ids of three tables by a power law. `asked` counts the batches that were made."""

    def __init__(self, *, batches: int, samples: int = 64) -> None:
        self.name = "power"
        self.tables = TABLES
        self.length = batches
        self.batch_lookups = 3 * samples
        self.asked = 0
        self._samples = samples

    def ids(self, index: int) -> Ids:
        self.asked += 1
        generator = np.random.default_rng([0, index])
        values = [(rows * generator.random(self._samples) ** 3).astype(np.int64) for _, rows in self.tables]
        ends = self._samples * np.arange(1, 4, dtype=np.int64)
        return Ids(np.concatenate(values), ends, self.table_starts)

    def frequencies(self) -> list[np.ndarray]:
        return [np.arange(rows, 0, -1, dtype=np.int64) for _, rows in self.tables]
