"""A contest among real processes: times and losses arrive, and a system that dies takes nobody along."""

import io

import pytest

from suite.records.record import Status
from suite.run.cell.experiment import run_cell
from suite.run.turns import timing as module
from suite.run.turns.timing import take_turns as held
from suite.run.worker import Reporter, RunCell
from tests.faults.cells import fake, tiny_cell
from tests.unit.suite.fabricate import environment, record
from tests.unit.suite.run.runner_scenes import Notebook, QuietMachine

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MachineMonitor", QuietMachine)

    def go(*systems, like=None):
        """Systems take turns with records as a cell leaves them; `like`: whose measurement all of them take."""
        records = []
        for system in systems:
            ended = run_cell(RunCell(cell=tiny_cell(like or system)), Reporter(io.BytesIO()))
            made = record(system, where=environment(gpu=False))
            outcome = {"measurement": ended.measurement, "verification": ended.verification, "turns": None}
            records.append(made.model_copy(update={"cell": tiny_cell(system), **outcome}))
        notebook = Notebook()
        found = held(records, tmp_path / "turns.log", display=notebook, timeout_s=60)
        return {one.cell.system: one for one in found}

    return go


@pytest.mark.slow
def test_systems_take_turns_in_one_process_on_the_same_batches_and_say_what_disturbed_them(take_turns, monkeypatch):
    monkeypatch.setattr(QuietMachine, "seen", QuietMachine.seen.model_copy(update={"others_cpu_share": 0.4}))
    found = take_turns("full_gpu", "freq_cache")
    assert set(found) == {"full_gpu", "freq_cache"}
    for one in found.values():
        turns = one.turns
        assert (turns.way, turns.losses, turns.baseline, turns.steps) == ("one process", "equal", "full_gpu", 1)
        assert [len(build) for build in turns.system_s] == [len(build) for build in turns.baseline_s] == [6, 6]
        assert min(second for build in (*turns.system_s, *turns.baseline_s) for second in build) > 0
        assert one.conditions == QuietMachine.seen
        sentence = "other processes took 40% of the CPUs while turns were taken (load 0.5 at the start)"
        assert one.disturbed == (sentence,)
    assert found["full_gpu"].turns.contest == found["freq_cache"].turns.contest
    assert found["full_gpu"].turns.system_s == found["freq_cache"].turns.baseline_s


@pytest.mark.slow
def test_system_that_dies_in_its_turns_fails_alone(take_turns):
    found = take_turns("full_gpu", fake("Segfaults"), like="full_gpu")
    assert found["full_gpu"].turns.way == "one process"
    fell = found[fake("Segfaults")]
    assert (fell.status, fell.phase, fell.turns) == (Status.CRASHED, "turns", None)
    assert fell.reason.startswith("the worker died of SIGSEGV")
    assert fell.measurement is not None
