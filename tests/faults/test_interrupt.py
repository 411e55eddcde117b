"""A run that is stopped in its middle, by Ctrl-C or worse, as a person at a terminal would see it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults.cells import fake, left, wait_until
from tests.faults.fakes import CALM, PID_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = f"reference,{fake('HangsUnlessCalm')}"
SOON_S = 180


def command(out):
    settings = ["--systems", SYSTEMS, "--workloads", "avazu", "--scale", "smoke", "--device", "cpu"]
    sizes = ["--steps", "5", "--batch-size", "32", "--embedding-dim", "4"]
    return [sys.executable, "run_bench.py", *settings, *sizes, "--out", str(out)]


@contextmanager
def hanging(command, tmp_path, monkeypatch):
    """A command whose worker hangs: its process, and those that the worker told of."""
    told = tmp_path / "pids"
    monkeypatch.setenv(PID_FILE, str(told))
    monkeypatch.setenv("NO_COLOR", "1")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: told.exists() or process.poll() is not None, within_s=SOON_S)
        assert process.poll() is None, process.communicate()
        yield process, [int(line) for line in told.read_text().split()]
    finally:
        process.kill()
        process.communicate()


def statuses(out):
    records = [json.loads(path.read_text()) for path in (out / "records").glob("*.json")]
    return {record["cell"]["system"].rpartition(":")[2]: record["status"] for record in records}


def test_ctrl_c_keeps_what_is_done_prints_it_leaves_no_process_and_the_next_call_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with hanging(command(out), tmp_path, monkeypatch) as (process, pids):
        workers = psutil.Process(process.pid).children(recursive=True)
        assert pids[0] in {worker.pid for worker in workers}
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stdout + stderr
    assert left(pids + [worker.pid for worker in workers]) == []

    assert "interrupted: what is done is kept, the same command goes on from here" in stdout
    table = stdout.partition("finished in")[2]
    assert "reference" in table
    assert "interrupted" in table
    assert statuses(out) == {"reference": "ok", "HangsUnlessCalm": "interrupted"}

    monkeypatch.setenv(CALM, "1")
    again = subprocess.run(command(out), cwd=ROOT, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert again.returncode == 0, again.stderr
    assert "2 cells, 1 of them done already" in again.stdout
    assert "reference x avazu: started" not in again.stdout
    assert statuses(out) == {"reference": "ok", "HangsUnlessCalm": "ok"}


PARENT = """
import sys
from pathlib import Path
from tests.faults.cells import fake, run, tiny_cell

if __name__ == "__main__":
    run(tiny_cell(fake("HangsUnlessCalm")), Path(sys.argv[1]))
"""


def test_worker_and_its_children_die_with_a_parent_that_was_killed(tmp_path, monkeypatch):
    with hanging([sys.executable, "-c", PARENT, str(tmp_path)], tmp_path, monkeypatch) as (process, pids):
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        assert left(pids) == []
