"""A run whose output cannot be written: what was measured is kept, and the exit code is that of its cells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.records.store import RecordStore

ROOT = Path(__file__).parents[5]
RUN = """
import sys
from suite.run import runner
from suite.run.console import command
from tests.unit.suite.run.runner_scenes import Turned, Workers

runner.run_in_process, runner.take_turns = Workers(), Turned.take
runner._summary = lambda record: "größer \\x1b[2J als ≥ 1"
command.main()
"""


def run(out, *words, **changes):
    """Run two cells whose workers are stand-ins."""
    command = [sys.executable, "-c", RUN, "--systems", "reference,full_gpu", "--workloads", "avazu", "--scale", "smoke"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EMBEDDING_BENCH_LOCKS": str(out / "locks"), "NO_COLOR": "1"}
    environment |= changes.pop("env", {})
    command += ["--device", "cpu", "--out", str(out), *words]
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=120, check=False, **changes)


def measured(out):
    """Whether all was written: two records, and the tables."""
    records, problems = RecordStore(out).load_all()
    tables = sorted(path.name for path in (out / "tables").iterdir())
    return (len(records), problems, tables) == (2, [], ["comparison.csv", "comparison.md"])


@pytest.mark.parametrize(("output", "said"), [("full", "No space left on device"), ("closed", "Broken pipe")])
def test_output_that_fails_loses_nothing_that_was_measured(tmp_path, output, said):
    if output == "full":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, stdout = os.pipe()
        os.close(reading)
    done = run(tmp_path, stdout=stdout)
    os.close(stdout)
    assert measured(tmp_path), done.stderr
    assert done.returncode == 0, done.stderr
    assert f"standard output fails ({said}): nothing more is shown" in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_output_that_knows_ascii_alone_shows_the_rest_escaped_and_no_control_character(tmp_path):
    done = run(tmp_path, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert measured(tmp_path), done.stderr
    assert done.returncode == 0, done.stderr
    assert rb"gr\xf6\xdfer \ufffd[2J als" in done.stdout
    assert b"\x1b" not in done.stdout
