"""A run whose workers are stand-ins, and workers that run a script."""

import sys
import textwrap
from types import SimpleNamespace

import pytest

from suite.run import runner as module
from suite.run.forkserver import Forkserver
from suite.run.process import run_in_process
from suite.run.runner import Choice, Runner
from suite.run.worker import RunCell
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import environment
from tests.unit.suite.run.runner_scenes import CELLS, GENEROUS, Notebook, Turned, Workers


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
        return SimpleNamespace(workers=workers, display=display, records=records, code=runner.exit_code, out=tmp_path)

    return go


STAND_IN = """
import importlib, sys
from multiprocessing.connection import Connection
from pathlib import Path
from suite.run import worker, forkserver

def main(fd):
    answers = Connection(fd, readable=False)
    exec(Path({script!r}).read_text(), {{**vars(worker), "answers": answers, "send": answers.send}})
    sys.exit()

worker.main, importlib.import_module, sys.argv = main, lambda name: None, ["", sys.argv[-1]]
forkserver.main()
"""


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A script that forked workers run in place of their own; it has the names of `suite.run.worker`, and `send`."""
    folder = tmp_path_factory.mktemp("stand_in")
    stand_in = folder / "forkserver"
    stand_in.write_text(f"#!{sys.executable}\n{STAND_IN.format(script=str(folder / 'script'))}")
    stand_in.chmod(0o755)
    Forkserver.drop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(stand_in))
        yield folder / "script"
    Forkserver.drop()


@pytest.fixture
def worker(body, tmp_path):
    """Run a script in the worker's place."""

    def use(text):
        body.write_text("import os, sys, time\n" + textwrap.dedent(text))

        def run(limits=GENEROUS, **changes):
            return run_in_process(RunCell(cell=tiny_cell()), limits=limits, log=tmp_path / "logs" / "a.log", **changes)

        return run

    return use
