"""A run whose workers are stand-ins."""

import pytest

from suite.run import runner as module
from suite.run.runner import Choice, Runner, exit_code
from tests.unit.suite.fabricate import environment
from tests.unit.suite.run.runner_scenes import CELLS, Notebook, Turned, Workers


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the cells with stand-in workers; returns what happened."""
    monkeypatch.setattr(module, "take_turns", Turned.take)
    monkeypatch.setattr(Turned, "sessions", [])

    def go(choice=Choice.RESUME, *, cells=CELLS, where=None, timeout_s=None, weights=None, **outcomes):
        workers, display = Workers(**outcomes), Notebook()
        workers.weights = weights or {}
        monkeypatch.setattr(module, "run_in_process", workers)
        runner = Runner(
            cells,
            out=tmp_path,
            environment=where or environment(gpu=False),
            choice=choice,
            timeout_s=timeout_s,
        )
        records = runner.run(display)
        code = exit_code(records, planned=len(cells), interrupted=runner.interrupted)
        return type("Ran", (), {"workers": workers, "display": display, "records": records, "code": code, "it": runner})

    return go
