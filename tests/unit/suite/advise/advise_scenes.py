"""What the tests of the advisor share: a case on three small tables."""

from types import SimpleNamespace

from suite.advise.case import Case
from systems.contract import Budget, CacheRatio
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
    workload = SimpleNamespace(tables=TABLES, dense_columns=dense_columns, batch_lookups=3 * cell.batch_size)
    return Case(cell=cell, workload=workload, budget=budget or CacheRatio(ratio=0.5))
