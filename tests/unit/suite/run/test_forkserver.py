"""Which code a worker runs: this copy of the suite, as it was when the run began."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.records.record import Status
from suite.run import forkserver
from suite.run.forkserver import Forkserver
from suite.run.process import Limits, WorkerProcess, run_in_process
from suite.run.worker import RunCell
from tests.faults.cells import tiny_cell

GENEROUS = Limits(wall_s=90, stall_s=90, host_bytes=8 * 10**9)


@pytest.fixture(autouse=True)
def fresh():
    Forkserver.drop()
    yield
    Forkserver.drop()


@pytest.mark.parametrize("looked_in", [False, True])
def test_workers_import_this_package_and_look_where_the_caller_does(tmp_path, monkeypatch, looked_in):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path] if looked_in else [path for path in sys.path if path])
    monkeypatch.setenv("PYTHONPATH", "inherited")
    found = forkserver.worker_environment()
    own = str(Path(forkserver.__file__).resolve().parents[2])
    here = [str(tmp_path)] if looked_in else []
    assert found["PYTHONPATH"].split(os.pathsep) == [own, *here, "inherited"]
    assert (found["PYTHONSAFEPATH"], found["CUDA_DEVICE_ORDER"]) == ("1", "PCI_BUS_ID")
    assert int(found["OMP_NUM_THREADS"]) == len(os.sched_getaffinity(0))


OTHER = """
import os, sys
open(os.environ["WITNESS"], "a").write(__name__)
"""


def test_another_checkout_in_the_working_directory_is_not_imported(tmp_path, monkeypatch):
    packages = (f"{package}/__init__" for package in ("suite", "suite/run"))
    for name in (*packages, "suite/run/forkserver", "json"):
        file = tmp_path / "other" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(OTHER)
    monkeypatch.setenv("WITNESS", str(tmp_path / "witness"))
    monkeypatch.chdir(tmp_path / "other")
    ended = run_in_process(RunCell(cell=tiny_cell("full_gpu")), limits=GENEROUS, log=tmp_path / "log")
    assert (ended.status, ended.reason) == (Status.OK, "")
    assert not (tmp_path / "witness").exists()


def test_workers_are_new_interpreters_where_an_import_has_opened_a_driver(tmp_path, monkeypatch):
    driver, popen = tmp_path / "nvidia-uvm", subprocess.Popen
    driver.touch()
    program = f"""from suite.run import forkserver
forkserver._DRIVERS, opened = ({str(driver)!r},), open({str(driver)!r})
forkserver.main()"""

    def with_driver(command, **rest):
        return popen([*command[:2], "-c", program, command[-1]], **rest)

    monkeypatch.setattr(forkserver.subprocess, "Popen", with_driver)
    with WorkerProcess(tmp_path / "log") as worker:
        command = Path(f"/proc/{worker.pid}/cmdline")
        while b"suite.run.worker" not in command.read_bytes():  # pytest's time limit ends a wait for nothing
            time.sleep(0.01)
        worker.ask(RunCell(cell=tiny_cell("full_gpu")))
        answer = worker.answer(GENEROUS)
    assert (answer.status, answer.reason) == (Status.OK, "")
