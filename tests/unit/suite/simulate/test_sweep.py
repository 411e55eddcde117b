"""Cells replayed here or in processes: the same counters, every cell accounted for."""

from __future__ import annotations

import os
from functools import partial

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


class Dies(CacheModel):
    """Takes its process with it, as the kernel does where memory ends."""

    source = "test"

    def step(self, batch: Seen, tally: Tally | None) -> None:
        os._exit(9)


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
    fixed = {name: value for name, value in vars(tally).items() if name != "by_table"}
    return fixed, tally.by_table.tolist(), outcome.slots, outcome.bytes_moved, outcome.replayed_lookups


@pytest.mark.slow
def test_counters_are_the_same_in_processes_and_here() -> None:
    here = {o.cell: counted(o) for o in run_cells(CELLS, open_trace=OPEN, span=SPAN, row=ROW, jobs=1)}
    told: list[int] = []
    there = {
        o.cell: counted(o)
        for o in run_cells(CELLS, open_trace=OPEN, span=SPAN, row=ROW, jobs=2, on_batches=told.append)
    }
    assert list(here) == CELLS
    assert here == there
    assert sum(told) == len(CELLS) * SPAN.stop


def test_a_cell_says_what_it_counted() -> None:
    outcome = run_cell(cell("uvm"), trace=OPEN(), span=SPAN, row=ROW)
    tally = outcome.tally
    assert tally is not None
    assert (outcome.status, outcome.bypasses, tally.batches) == ("ok", True, 4)
    assert outcome.replayed_lookups == 6 * 64 * 13
    assert outcome.bytes_moved == (16 * tally.rows_fetched + 16 * tally.unique_ids, 32 * tally.rows_written_back)
    assert outcome.replay_s > 0


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_policy_that_cannot_run_or_fails_is_an_outcome_too(jobs: int) -> None:
    cells = [cell("test_sweep:Refuses"), cell("test_sweep:Breaks"), cell("uvm")]
    found = {o.cell: o for o in run_cells(cells, open_trace=OPEN, span=SPAN, row=ROW, jobs=jobs)}
    refused, broken, fine = (found[one] for one in cells)
    assert (refused.status, refused.reason) == ("cannot_replay", "batch 0 has more rows than 300 slots")
    assert (broken.status, broken.reason) == ("failed", "KeyError: 'slot'")
    assert refused.tally is broken.tally is None
    assert fine.status == "ok"


def test_a_process_that_dies_fails_its_cell_and_the_others_go_on() -> None:
    cells = [cell("test_sweep:Dies"), cell("uvm"), cell("freq_cache")]
    found = {o.cell: o for o in run_cells(cells, open_trace=OPEN, span=SPAN, row=ROW, jobs=2)}
    assert "process ended with 9" in found[cells[0]].reason
    assert [found[one].status for one in cells] == ["failed", "ok", "ok"]


@pytest.mark.slow
def test_when_all_processes_are_dead_no_cell_is_forgotten() -> None:
    cells = [cell("test_sweep:Dies"), cell("test_sweep:Dies", 301), cell("uvm")]
    found = list(run_cells(cells, open_trace=OPEN, span=SPAN, row=ROW, jobs=2))
    assert {o.cell for o in found} == set(cells)
    assert {o.status for o in found} == {"failed"}


def _damaged() -> Trace:
    trace = skewed_trace(tables=(9,), batches=6, samples=3)

    def ids(index: int):
        raise DataError(f"batch {index} is damaged")

    trace.ids = ids
    return trace


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_damaged_data_end_the_sweep(jobs: int) -> None:
    with pytest.raises(DataError, match="batch 0 is damaged"):
        list(run_cells([cell("uvm"), cell("freq_cache")], open_trace=_damaged, span=SPAN, row=ROW, jobs=jobs))


def test_jobs_keep_within_cores_and_memory() -> None:
    plenty = 10**12
    assert plan_jobs(rows=1_000_000, lookups=plenty, cores=2) == 2
    assert plan_jobs(rows=33_762_577, lookups=plenty, cores=2) == 2
    assert plan_jobs(rows=33_762_577, lookups=plenty, cores=64) == 3
    assert plan_jobs(rows=177_944_275, lookups=plenty, cores=2) == 1
    assert plan_jobs(rows=1_000_000, lookups=1_000_000, cores=2) == 1


def test_slots_are_rounded_as_the_systems_do() -> None:
    assert [slots_of(999, ratio) for ratio in (0.001, 0.0001, 0.5, 1.0)] == [1, 1, 499, 999]


def test_progress_is_told_while_a_cell_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_TELL_EVERY_S", 0.0)
    told: list[int] = []
    run_cell(cell("uvm"), trace=OPEN(), span=SPAN, row=ROW, on_batches=told.append)
    assert told == [1] * SPAN.stop + [0]
