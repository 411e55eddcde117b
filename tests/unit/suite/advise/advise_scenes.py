"""What the tests of the advisor share: a small shape, a stream, costs made by hand."""

import numpy as np

from suite.advise.calibrate.calibrate import Calibration, KernelCosts
from suite.advise.case import Case, RowType, Weighed
from suite.advise.costs import Line
from suite.advise.shape import Shape
from suite.simulate.trace import Trace
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


def calibration(of: Shape | None = None) -> Calibration:
    """Costs made by hand of three kernels, the dense part 10 ms."""
    plain = {
        "dense": Line(fixed_s=0.01),
        "calls": Line(fixed_s=3e-3),
        "lookup": Line(per_s={"lookups": 1e-6}),
        "update": Line(per_s={"distinct": 2e-6}),
    }
    moved = {"planning": Line(per_s={"misses": 3e-6}), "moving": Line(per_s={"moved": 4e-6})}
    slowed, beside = ({"planning": Line(per_s={"misses": per})} for per in (1e-6, 4e-6))
    costs = {
        "freq_cache": (plain | moved, {}),
        "full_gpu": (plain, {}),
        "freq_cache[look_ahead=4]": (plain | slowed, beside),
    }
    made = (
        KernelCosts(shape=of or shape(), kernel=Weighed(system=name), exposed=exposed, hidden=hidden)
        for name, (exposed, hidden) in costs.items()
    )
    return Calibration(machine="a cpu", costs=tuple(made), refused={"reference": "no such thing"})
