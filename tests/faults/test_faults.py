"""Systems that misbehave in a process of their own: each ends in its status, in time, with a reason to act upon."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from suite.records.status import Status
from suite.run.process import Limits
from tests.faults.cells import fake, run, tiny_cell
from tests.faults.fakes import PID_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

SOON_S = 60
"""A worker takes seconds to import torch, more where the cores are busy; no fault may add a minute to that."""


@pytest.fixture
def pids(tmp_path, monkeypatch):
    """The process ids that a fake tells of, once it has."""
    path = tmp_path / "pids"
    monkeypatch.setenv(PID_FILE, str(path))

    def wait():
        end = time.monotonic() + SOON_S
        while not path.exists():
            assert time.monotonic() < end, "the fake told of no process"
            time.sleep(0.05)
        return [int(line) for line in path.read_text().split()]

    return wait


def gone(pid):
    """Whether a process has ended; one that nobody reaped yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(found):
    end = time.monotonic() + 10
    while time.monotonic() < end and not all(gone(pid) for pid in found):
        time.sleep(0.05)
    return [pid for pid in found if not gone(pid)] == []


@pytest.mark.parametrize(
    ("system", "status", "reason"),
    [
        (fake("Segfaults"), Status.CRASHED, "died of SIGSEGV; its last line: about to follow a bad pointer"),
        (fake("ExitsWithZero"), Status.CRASHED, "ended with exit code 0 and no result"),
        (fake("ExitsWithThree"), Status.CRASHED, "ended with exit code 3 and no result"),
        (fake("BuildFails"), Status.CRASHED, "ValueError: rows of width 4 do not fit a tile of 64:"),
        ("tests.faults.needy:System", Status.UNAVAILABLE, "pip install no-such-package-anywhere"),
        ("tests.faults.wrong:SlightlyWrongUpdate", Status.WRONG_ANSWER, "sgd: losses: differs by"),
    ],
    ids=lambda value: value.rpartition(":")[2] if isinstance(value, str) and value.startswith("tests.") else "",
)
def test_faulty_system_ends_as(tmp_path, system, status, reason):
    ended = run(tiny_cell(system), tmp_path)
    assert (ended.outcome.status, reason in ended.outcome.reason) == (status, True), ended.outcome.reason
    assert ended.wall_s < SOON_S
    assert ended.outcome.measurement is None


def test_host_memory_beyond_the_limit_ends_the_cell_before_the_kernel_picks_a_victim(tmp_path):
    limits = Limits(wall_s=120, stall_s=60, host_bytes=1_200_000_000)
    ended = run(tiny_cell(fake("HostHog")), tmp_path, limits=limits)
    assert ended.outcome.status is Status.OOM_HOST
    assert "in phase 'verify', the limit is 1.2 GB: use a smaller --scale" in ended.outcome.reason
    assert ended.wall_s < SOON_S


@pytest.mark.timeout(300)
def test_system_that_hangs_is_stopped_whether_it_spins_sleeps_or_holds_the_interpreter(tmp_path):
    limits = Limits(wall_s=200, stall_s=25, host_bytes=8 * 10**9)
    names = ("Spins", "Sleeps", "HoldsTheInterpreter")
    with ThreadPoolExecutor(len(names)) as pool:
        ends = list(pool.map(lambda name: run(tiny_cell(fake(name)), tmp_path / name, limits=limits), names))
    for name, ended in zip(names, ends, strict=True):
        assert ended.outcome.status is Status.TIMEOUT, name
        assert ended.outcome.reason == "no sign of life for 25 s in phase 'verify'"
        assert ended.phase == "verify"
        assert 25 < ended.wall_s < 25 + SOON_S, name


def test_cell_that_takes_longer_than_its_wall_time_is_stopped_and_told_which_flag_to_raise(tmp_path):
    ended = run(tiny_cell(fake("Sleeps")), tmp_path, limits=Limits(wall_s=2, stall_s=60, host_bytes=8 * 10**9))
    assert ended.outcome.status is Status.TIMEOUT
    assert "after 2 s: raise --timeout" in ended.outcome.reason
    assert 2 < ended.wall_s < 2 + 20


def test_worker_killed_from_outside_says_so_and_which_phase_it_was_in(tmp_path, pids):
    thread = threading.Thread(target=lambda: os.kill(pids()[0], signal.SIGKILL))
    thread.start()
    ended = run(tiny_cell(fake("Sleeps")), tmp_path)
    thread.join()
    assert ended.outcome.status in (Status.CRASHED, Status.OOM_HOST)  # the kernel may have killed another just then
    assert "killed" in ended.outcome.reason
    assert ended.phase == "verify"
    assert ended.wall_s < SOON_S


def test_noise_on_both_outputs_is_neither_a_message_nor_a_fault(tmp_path):
    seen = []
    ended = run(tiny_cell(fake("Noisy")), tmp_path, on_progress=seen.append)
    assert (ended.outcome.status, ended.outcome.reason) == (Status.OK, "")
    assert {"verify", "build", "train", "count", "evaluate"} <= {progress.phase for progress in seen}
    log = (tmp_path / "worker.log").read_bytes()
    assert len(log) > 2_000_000
    assert b"\xff\xfe\x00garbage" in log


def test_children_of_a_cell_that_is_ok_die_with_it_even_orphans_in_other_sessions(tmp_path, pids):
    ended = run(tiny_cell(fake("LeavesChildren")), tmp_path)
    assert ended.outcome.status is Status.OK, ended.outcome.reason
    assert len(pids()) == 2
    assert all_gone(pids())


def test_fork_left_behind_neither_hides_the_end_of_its_worker_nor_outlives_it(tmp_path, pids):
    ended = run(tiny_cell(fake("LeavesAForkAndExits")), tmp_path)
    assert ended.outcome.status is Status.CRASHED
    assert "ended with exit code 3 and no result" in ended.outcome.reason
    assert ended.wall_s < SOON_S
    assert all_gone(pids())
