"""Systems that misbehave in a process of their own: one ends in its status, in time, the other is no fault."""

import pytest

from suite.records.record import Status
from suite.run.process import Limits
from tests.faults.cells import fake, left, run, tiny_cell
from tests.faults.fakes import PID_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_system_that_hangs_is_stopped_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv(PID_FILE, str(tmp_path / "pids"))
    limits = Limits(wall_s=200, stall_s=12, host_bytes=8 * 10**9)
    ended = run(tiny_cell(fake("HangsUnlessCalm")), tmp_path, limits=limits)
    assert (ended.status, ended.phase) == (Status.TIMEOUT, "verify")
    assert ended.reason == "no sign of life for 12 s in phase 'verify'"
    assert left([int(line) for line in (tmp_path / "pids").read_text().split()]) == []


def test_noise_on_both_outputs_is_neither_a_message_nor_a_fault(tmp_path):
    seen = []
    ended = run(tiny_cell(fake("Noisy")), tmp_path, on_progress=seen.append)
    assert (ended.status, ended.reason) == (Status.OK, "")
    assert {"verify", "build", "train", "count", "evaluate"} <= {progress.phase for progress in seen}
    log = (tmp_path / "worker.log").read_bytes()
    assert len(log) > 2_000_000
    assert b"\xff\xfe\x00garbage" in log
