"""Cells replayed one after another or side by side: the same counters, every cell accounted for."""

import sys
import time
from functools import partial

from suite.simulate.command import SimulatedCell, plan_jobs, run_cells
from suite.simulate.models.model import CacheModel, RowBytes, Span, Tally
from suite.simulate.options import open_trace
from suite.simulate.trace import Seen
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import Variant

ROW = RowBytes(weights=16, optimizer=SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.0), dim=4)
SPAN = Span(counted_from=2, stop=6)
OPEN = partial(open_trace, workload="avazu", scale="smoke", batch_size=64)


class Slow(CacheModel):
    """Takes its time."""

    steps = 0

    def step(self, batch: Seen, tally: Tally | None) -> None:
        type(self).steps += 1
        time.sleep(0.01)


def cell(name: str, slots: int = 300, **parameters: str) -> SimulatedCell:
    return SimulatedCell(policy=Variant(name, tuple(parameters.items())), slots=slots)


CELLS = [
    cell("freq_cache", policy="static"),
    cell("freq_cache", policy="lru", look_ahead="4"),
    cell("freq_cache", 5000, policy="lfu"),
    cell("uvm"),
]


def test_counters_are_the_same_one_by_one_and_side_by_side() -> None:
    cells = [*CELLS, cell("belady"), cell("belady", 5000), cell("fae"), cell("lru")]
    alone = dict(run_cells(cells, trace=OPEN(), span=SPAN, row=ROW, jobs=1))
    told: list[int] = []
    beside = dict(run_cells(cells, trace=OPEN(), span=SPAN, row=ROW, jobs=4, on_batches=told.append))
    assert {one: (beside[one].slots, beside[one].traffic) for one in cells} == {
        one: (alone[one].slots, alone[one].traffic) for one in cells
    }
    assert list(alone) == cells
    assert told == sorted(told)
    assert told[-1] == len(cells) * SPAN.stop
    traffic = alone[cell("uvm")].traffic
    assert traffic.batches == 4
    assert traffic.bytes_fetched == 16 * traffic.rows_fetched + 16 * traffic.unique_ids
    assert traffic.bytes_written_back == 32 * traffic.rows_written_back


def test_replays_end_when_nobody_waits_for_them() -> None:
    long = Span(counted_from=0, stop=500)
    outcomes = run_cells([cell("fae"), cell("test_sweep:Slow")], trace=OPEN(), span=long, row=ROW, jobs=1)
    assert next(outcomes)[1].status == "ok"
    outcomes.close()
    module = sys.modules["test_sweep"]
    assert module.Slow.steps < long.stop


def test_jobs_keep_within_cores_and_memory() -> None:
    assert plan_jobs(rows=1_000_000, cores=2) == 2
    assert plan_jobs(rows=33_762_577, cores=64) == 5
    assert plan_jobs(rows=177_944_275, cores=2) == 1
    assert plan_jobs(rows=1_000_000_000, cores=2) == 1
