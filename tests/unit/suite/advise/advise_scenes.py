"""What the tests of the advisor share: a case on three small tables, and a stream of their ids."""

import numpy as np

from suite.advise.case import Case
from suite.simulate.trace import Trace
from systems.contract import Budget, CacheRatio
from systems.freq_cache.cache.plan import Ids
from tests.unit.suite import fabricate

TABLES = (("first", 500), ("second", 300), ("third", 20))


def case(system: str = "full_gpu", *, budget: Budget | None = None, dense_columns: int = 4, **changes: object) -> Case:
    """A system on tables of 820 rows, batches of 64."""
    setting: dict[str, object] = {
        "embedding_dim": 16,
        "batch_size": 64,
        "bottom_mlp": (8,),
        "top_mlp": (8, 1),
        "optimizer": "sgd",
        "device": "cpu",
    }
    cell = fabricate.cell(system, **setting | changes)
    return Case(
        cell=cell,
        tables=TABLES,
        dense_columns=dense_columns,
        batch_lookups=3 * cell.batch_size,
        budget=budget or CacheRatio(ratio=0.5),
    )


class PowerTrace(Trace):
    """Ids of three tables by a power law."""

    def __init__(self, *, batches: int, samples: int = 64) -> None:
        self.name = "power"
        self.tables = TABLES
        self.length = batches
        self.batch_lookups = 3 * samples
        self._samples = samples

    def ids(self, index: int) -> Ids:
        generator = np.random.default_rng([0, index])
        values = [(rows * generator.random(self._samples) ** 3).astype(np.int64) for _, rows in self.tables]
        ends = self._samples * np.arange(1, 4, dtype=np.int64)
        return Ids(np.concatenate(values), ends, self.table_starts)

    def frequencies(self) -> list[np.ndarray]:
        return [np.arange(rows, 0, -1, dtype=np.int64) for _, rows in self.tables]
