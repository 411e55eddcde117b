"""What the tests of the advisor share: a small shape, a stream, costs made by hand."""

from __future__ import annotations

import numpy as np

from suite.advise.calibrate.calibration import Calibration, Kernel, KernelCosts, RowType, ShapeCosts
from suite.advise.case import Case
from suite.advise.costs import Line
from suite.advise.shape import Shape
from suite.simulate.traces.trace import Trace
from systems.contract import Budget, CacheRatio
from systems.freq_cache.planner.planner import Ids

TABLES = (("first", 500), ("second", 300), ("third", 20))


def shape(**changes: object) -> Shape:
    """Three tables of 820 rows, batches of 64."""
    values: dict[str, object] = {
        "tables": 3,
        "rows": 820,
        "hotness": 1,
        "embedding_dim": 16,
        "batch_size": 64,
        "dense_columns": 4,
        "bottom_mlp": (8,),
        "top_mlp": (8, 1),
        "optimizer": "sgd",
        "device": "cpu",
    }
    return Shape.model_validate(values | changes)


def case(system: str, *, budget: Budget | None = None, row_type: RowType = RowType.FP32, **changes: object) -> Case:
    """A system on these tables."""
    of = shape(**changes)
    return Case(
        system=system,
        row_type=row_type,
        shape=of,
        tables=TABLES,
        batch_lookups=of.batch_lookups,
        budget=budget or CacheRatio(ratio=0.5),
    )


class PowerTrace(Trace):
    """Ids of three tables by a power law."""

    def __init__(self, *, batches: int, samples: int = 64, seed: int = 0) -> None:
        self.name = "power"
        self.tables = TABLES
        self.length = batches
        self.batch_lookups = 3 * samples
        self._samples = samples
        self._seed = seed

    def ids(self, index: int) -> Ids:
        if not 0 <= index < self.length:
            raise IndexError(index)
        generator = np.random.default_rng([self._seed, index])
        values = [(rows * generator.random(self._samples) ** 3).astype(np.int64) for _, rows in self.tables]
        ends = self._samples * np.arange(1, 4, dtype=np.int64)
        return Ids(np.concatenate(values), ends, self.table_starts)

    def frequencies(self) -> list[np.ndarray]:
        return [np.arange(rows, 0, -1, dtype=np.int64) for _, rows in self.tables]


LINES = KernelCosts(
    kernel=Kernel(variant="freq_cache"),
    dense_s=0.01,
    lookup=Line(fixed_s=1e-3, per_lookup_s=1e-6),
    update=Line(fixed_s=2e-3, per_distinct_s=2e-6),
    planning=Line(per_miss_s=3e-6),
    moving=Line(per_moved_s=4e-6),
)
RESIDENT = KernelCosts(
    kernel=Kernel(variant="full_gpu"),
    dense_s=0.01,
    lookup=Line(fixed_s=1e-3, per_lookup_s=1e-6),
    update=Line(fixed_s=2e-3, per_distinct_s=2e-6),
)
AHEAD = KernelCosts(
    kernel=Kernel(variant="freq_cache[look_ahead=4]"),
    dense_s=0.01,
    lookup=Line(fixed_s=1e-3),
    update=Line(fixed_s=2e-3),
    beside=Line(per_miss_s=5e-6),
    slowed=Line(per_miss_s=1e-6),
)


def calibration(*kernels: KernelCosts, of: Shape | None = None) -> Calibration:
    """Made by hand, dense part 10 ms."""
    costs = ShapeCosts(shape=of or shape(), kernels=kernels, refused={"reference": "no such thing"})
    return Calibration(cpu="a cpu", gpu=None, shapes=(costs,))
