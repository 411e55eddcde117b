"""Cells replayed one after another or side by side: the same counters, every cell accounted for."""

import sys
import time

from suite.simulate.command import SimulatedCell, plan_jobs, run_cells
from suite.simulate.models.model import CacheModel, RowBytes, Span, Tally
from suite.simulate.models.registry import MODELS
from suite.simulate.options import open_trace
from suite.simulate.trace import Seen
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import read_variant

ROW = RowBytes(weights=16, optimizer=SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.0), dim=4)
SPAN = Span(counted_from=2, stop=6)


class Slow(CacheModel):
    """Takes its time."""

    steps = 0

    def step(self, batch: Seen, tally: Tally | None) -> None:
        type(self).steps += 1
        time.sleep(0.01)


def replays(*policies: str, span: Span = SPAN, jobs: int = 1, **more):
    trace = open_trace(workload="avazu", scale="smoke", batch_size=64)
    named = [read_variant(policy, known=list(MODELS), what="policy") for policy in policies]
    cells = [SimulatedCell(policy=policy, slots=300) for policy in named]
    return run_cells(cells, trace=trace, span=span, row=ROW, jobs=jobs, **more)


def test_counters_are_the_same_one_by_one_and_side_by_side() -> None:
    policies = ("freq_cache[policy=static]", "freq_cache[policy=lru,look_ahead=4]", "uvm", "belady", "fae", "lru")
    alone = {str(cell.policy): outcome for cell, outcome in replays(*policies)}
    told: list[int] = []
    beside = {str(cell.policy): outcome for cell, outcome in replays(*policies, jobs=4, on_batches=told.append)}
    assert tuple(alone) == policies
    assert {name: one.traffic for name, one in beside.items()} == {name: one.traffic for name, one in alone.items()}
    assert told == sorted(told)
    assert told[-1] == len(policies) * SPAN.stop
    traffic = alone["uvm"].traffic
    assert traffic.batches == 4
    assert traffic.bytes_fetched == 16 * traffic.rows_fetched + 16 * traffic.unique_ids
    assert traffic.bytes_written_back == 32 * traffic.rows_written_back


def test_replays_end_when_nobody_waits_for_them() -> None:
    outcomes = replays("fae", "test_sweep:Slow", span=Span(counted_from=0, stop=500))
    assert next(outcomes)[1].status == "ok"
    outcomes.close()
    assert sys.modules["test_sweep"].Slow.steps < 500


def test_jobs_keep_within_cores_and_memory() -> None:
    assert plan_jobs(rows=1_000_000, cores=2) == 2
    assert plan_jobs(rows=33_762_577, cores=64) == 5
    assert plan_jobs(rows=1_000_000_000, cores=2) == 1
