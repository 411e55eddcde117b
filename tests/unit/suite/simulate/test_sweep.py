"""Cells replayed one after another or side by side: the same counters, every cell accounted for."""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
import pytest
from listed_traces import skewed_trace

from suite.simulate import sweep
from suite.simulate.models.model import CacheModel, CannotReplay, RowBytes, Span, Tally
from suite.simulate.options import open_trace
from suite.simulate.sweep import Outcome, SimulatedCell, plan_jobs, run_cell, run_cells, slots_of
from suite.simulate.traces.trace import Seen, Trace
from systems.contract import OptimizerKind, SparseOptimizer
from systems.registry import Variant
from workloads.errors import DataError

ROW = RowBytes(weights=16, optimizer=SparseOptimizer(kind=OptimizerKind.ADAGRAD, lr=0.0), dim=4)
SPAN = Span(counted_from=2, stop=6)
OPEN = partial(open_trace, workload="avazu", scale="smoke", batch_size=64)


class Refuses(CacheModel):
    """Cannot hold a batch."""

    source = "test"

    def step(self, batch: Seen, tally: Tally | None) -> None:
        raise CannotReplay(f"batch {batch.number} has more rows than {self.slots} slots")


class Breaks(CacheModel):
    """Has a bug."""

    source = "test"

    def step(self, batch: Seen, tally: Tally | None) -> None:
        raise KeyError("slot")


class Slow(CacheModel):
    """Takes its time."""

    source = "test"
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


def counted(outcome: Outcome) -> tuple[object, ...]:
    tally = outcome.tally
    assert tally is not None
    fixed = {name: value for name, value in vars(tally).items() if name not in ("by_table", "over_time")}
    arrays = [array.tolist() for array in (tally.by_table, np.concatenate(tally.over_time))]
    return fixed, arrays, outcome.slots, outcome.bytes_moved, outcome.replayed_lookups


def test_counters_are_the_same_one_by_one_and_side_by_side() -> None:
    cells = [*CELLS, cell("belady"), cell("belady", 5000), cell("fae"), cell("windowed")]
    alone = {o.cell: counted(o) for o in run_cells(cells, trace=OPEN(), span=SPAN, row=ROW, jobs=1)}
    told: list[int] = []
    beside = run_cells(cells, trace=OPEN(), span=SPAN, row=ROW, jobs=4, on_batches=told.append)
    assert {o.cell: counted(o) for o in beside} == alone
    assert list(alone) == cells
    assert sum(told) == len(cells) * SPAN.stop


def test_a_cell_says_what_it_counted() -> None:
    outcome = run_cell(cell("uvm"), trace=OPEN(), span=SPAN, row=ROW)
    tally = outcome.tally
    assert tally is not None
    assert (outcome.status, outcome.bypasses, tally.batches) == ("ok", True, 4)
    assert outcome.replayed_lookups == 6 * 64 * 13
    assert outcome.bytes_moved == (16 * tally.rows_fetched + 16 * tally.unique_ids, 32 * tally.rows_written_back)
    assert outcome.replay_s > 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_policy_that_cannot_run_or_fails_is_an_outcome_too(jobs: int) -> None:
    cells = [cell("test_sweep:Refuses"), cell("test_sweep:Breaks"), cell("uvm")]
    found = {o.cell: o for o in run_cells(cells, trace=OPEN(), span=SPAN, row=ROW, jobs=jobs)}
    refused, broken, fine = (found[one] for one in cells)
    assert (refused.status, refused.reason) == ("cannot_replay", "batch 0 has more rows than 300 slots")
    assert (broken.status, broken.reason) == ("failed", "KeyError: 'slot'")
    assert refused.tally is broken.tally is None
    assert fine.status == "ok"


def test_replays_end_when_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_TELL_EVERY_S", 0.0)
    long = Span(counted_from=0, stop=500)
    outcomes = run_cells([cell("fae"), cell("test_sweep:Slow")], trace=OPEN(), span=long, row=ROW, jobs=1)
    assert next(outcomes).status == "ok"
    outcomes.close()
    module = sys.modules["test_sweep"]
    assert module.Slow.steps < long.stop


def _damaged() -> Trace:
    trace = skewed_trace(tables=(9,), batches=6, samples=3)

    def ids(index: int):
        raise DataError(f"batch {index} is damaged")

    trace.ids = ids
    return trace


@pytest.mark.parametrize("jobs", [1, 2])
def test_damaged_data_end_the_sweep(jobs: int) -> None:
    with pytest.raises(DataError, match="batch 0 is damaged"):
        list(run_cells([cell("uvm"), cell("freq_cache")], trace=_damaged(), span=SPAN, row=ROW, jobs=jobs))


def test_jobs_keep_within_cores_and_memory() -> None:
    assert plan_jobs(rows=1_000_000, cores=2) == 2
    assert plan_jobs(rows=33_762_577, cores=64) == 5
    assert plan_jobs(rows=177_944_275, cores=2) == 1
    assert plan_jobs(rows=1_000_000_000, cores=2) == 1


def test_slots_are_rounded_as_the_systems_do() -> None:
    assert [slots_of(999, ratio) for ratio in (0.001, 0.0001, 0.5, 1.0)] == [1, 1, 499, 999]


def test_progress_is_told_while_a_cell_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_TELL_EVERY_S", 0.0)
    told: list[int] = []
    run_cell(cell("freq_cache"), trace=OPEN(), span=SPAN, row=ROW, on_batches=told.append)
    assert told == [1] * SPAN.stop + [0]
