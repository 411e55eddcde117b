"""The least that a cell's cache could have missed, and which cells have such a figure."""

import pytest

from suite.run.cell.experiment import optimum_of, run_cell
from suite.run.cell.setup import CellSetup
from suite.run.worker import Reporter, RunCell
from suite.simulate.models import belady
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build
from suite.simulate.trace import WorkloadTrace
from systems.registry import Variant
from tests.faults.cells import tiny_cell


def quiet():
    return Reporter(None)


@pytest.fixture
def setup():
    return CellSetup.of(tiny_cell("freq_cache", batch_size=16, counted_steps=4))


def test_optimum_is_beladys_over_the_counted_steps_alone(setup):
    cell = setup.cell
    found = optimum_of(setup, 100, quiet())
    span = Span(counted_from=cell.steps - 4, stop=cell.steps)
    setting = Setting(trace=WorkloadTrace(setup.workload), span=span, slots=100)
    tally = replay(build(Variant("belady"), setting))
    assert (found.slots, found.first_step, found.steps, found.bypasses) == (100, cell.steps - 4, 4, False)
    assert found.unique_misses == tally.unique_misses
    assert found.bytes_moved == 16 * (tally.rows_fetched + tally.rows_written_back)  # 4 fp32 values a row
    ours = replay(build(Variant("freq_cache"), setting))
    assert 0 < found.unique_misses <= ours.unique_misses


def test_system_that_reads_past_its_cache_is_held_against_a_cache_that_may(setup):
    caching = CellSetup.of(setup.cell.model_copy(update={"system": "fbgemm_uvm_caching"}))
    found = optimum_of(caching, 100, quiet())
    assert found.bypasses
    assert found.unique_misses <= optimum_of(setup, 100, quiet()).unique_misses


def test_optimum_in_the_cache_is_not_replayed_again_by_any_cell_on_the_same_stream(setup, monkeypatch, tmp_path):
    found = optimum_of(setup, 100, quiet(), folder=tmp_path)
    again = CellSetup.of(setup.cell.model_copy(update={"system": "freq_cache[policy=lfu]"}))
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr("suite.simulate.models.model.replay", lambda *_, **__: pytest.fail("replayed"))
    assert optimum_of(again, 100, quiet(), folder=tmp_path) == found
    monkeypatch.undo()
    assert optimum_of(setup, 101, quiet(), folder=tmp_path).slots == 101
    elsewhere = CellSetup.of(setup.cell.model_copy(update={"seed": 1}))
    assert optimum_of(elsewhere, 100, quiet(), folder=tmp_path) != found
    file.write_text("{")
    assert optimum_of(again, 100, quiet(), folder=tmp_path) == found


@pytest.mark.slow
@pytest.mark.parametrize("system", ["freq_cache", "fbgemm_uvm_caching", "full_gpu"])
def test_cell_with_a_cache_has_an_optimum_and_one_without_has_none(system):
    cell = tiny_cell(system)  # fbgemm has no cache on a CPU
    outcome = run_cell(RunCell(cell=cell), quiet())
    assert outcome.status == "ok"
    if system == "freq_cache":
        assert (outcome.optimum.slots, outcome.optimum.steps) == (998, 2)
        assert outcome.optimum.unique_misses <= outcome.measurement.traffic.unique_misses
        assert outcome.optimum.bytes_moved > 0
    else:
        assert outcome.optimum is None
    assert outcome.notes == ()


@pytest.mark.slow
def test_optimum_that_cannot_be_replayed_costs_the_cell_a_note_and_no_more(monkeypatch):
    def too_large(*_, **__):
        raise MemoryError

    monkeypatch.setattr(belady, "next_uses", too_large)
    outcome = run_cell(RunCell(cell=tiny_cell("freq_cache")), quiet())
    assert outcome.status == "ok"
    assert outcome.optimum is None
    assert outcome.notes == ("no optimum: too little host memory to replay the steps",)
