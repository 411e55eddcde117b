"""Systems that misbehave in a process of their own: each ends in its status, in time, with a reason to act upon."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from suite.records.record import Status
from suite.run.process import Limits
from tests.faults.cells import fake, left, run, tiny_cell, wait_until
from tests.faults.fakes import PID_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

SOON_S = 120
"""A worker takes seconds to import torch, more where the cores are busy; no fault may add a minute to that."""


@pytest.fixture
def pids(tmp_path, monkeypatch):
    """The process ids that a fake tells of, once it has."""
    path = tmp_path / "pids"
    monkeypatch.setenv(PID_FILE, str(path))

    def wait():
        wait_until(path.exists, within_s=SOON_S)
        return [int(line) for line in path.read_text().split()]

    return wait


def test_system_that_hangs_is_stopped_whether_it_sleeps_or_holds_the_interpreter(tmp_path):
    limits = Limits(wall_s=200, stall_s=12, host_bytes=8 * 10**9)
    names = ("Sleeps", "HoldsTheInterpreter")
    with ThreadPoolExecutor(len(names)) as pool:
        ends = list(pool.map(lambda name: run(tiny_cell(fake(name)), tmp_path / name, limits=limits), names))
    for name, ended in zip(names, ends, strict=True):
        assert ended.status is Status.TIMEOUT, name
        assert ended.reason == "no sign of life for 12 s in phase 'verify'"
        assert ended.phase == "verify"
        assert 12 < ended.wall_s < 12 + SOON_S, name


def test_noise_on_both_outputs_is_neither_a_message_nor_a_fault(tmp_path):
    seen = []
    ended = run(tiny_cell(fake("Noisy")), tmp_path, on_progress=seen.append)
    assert (ended.status, ended.reason) == (Status.OK, "")
    assert {"verify", "build", "train", "count", "evaluate"} <= {progress.phase for progress in seen}
    log = (tmp_path / "worker.log").read_bytes()
    assert len(log) > 2_000_000
    assert b"\xff\xfe\x00garbage" in log


def test_fork_left_behind_neither_hides_the_end_of_its_worker_nor_outlives_it(tmp_path, pids):
    ended = run(tiny_cell(fake("LeavesAForkAndExits")), tmp_path)
    assert ended.status is Status.CRASHED
    assert "ended with exit code 3 and no result" in ended.reason
    assert ended.wall_s < SOON_S
    assert left(pids()) == []
