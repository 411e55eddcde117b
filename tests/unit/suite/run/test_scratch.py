"""Temporary directories of cells: whose they are, and when they go."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from suite.run.ending import runs
from suite.run.scratch import cell_directory, remove_left

RUN = """
import subprocess, sys, tempfile
tempfile.tempdir = sys.argv[1]
from suite.run.scratch import cell_directory
with cell_directory() as (folder, keep):
    worker = subprocess.Popen(["sleep", "60"], pass_fds=(keep,), stdout=subprocess.DEVNULL)
    print(folder, worker.pid, flush=True)
    worker.wait()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_directory_of_a_killed_run_stays_for_as_long_as_its_worker_lives(temporary):
    run = subprocess.Popen([sys.executable, "-c", RUN, str(temporary)], stdout=subprocess.PIPE, text=True)
    folder, pid = run.stdout.readline().split()
    assert remove_left() == []
    run.kill()
    run.wait()
    assert remove_left() == []
    assert Path(folder).is_dir()
    subprocess.run(["kill", "-9", pid], check=True)
    run.stdout.close()
    wait_for_end(int(pid))
    assert remove_left() == [Path(folder)]
    assert not Path(folder).exists()


def wait_for_end(pid):
    end = time.monotonic() + 30
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.02)


def test_two_cells_have_a_directory_each_that_goes_with_its_files_and_nothing_else_is_removed(temporary):
    stranger = temporary / "embedding-offload-bench"
    stranger.mkdir()
    assert remove_left() == []
    with cell_directory() as (one, _), cell_directory() as (other, _):
        (one / "rows").mkdir()
        (one / "rows" / "a").write_text("1")
        assert one != other
    assert [path for path in (one, other, stranger) if path.exists()] == [stranger]
