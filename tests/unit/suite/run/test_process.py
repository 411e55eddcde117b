"""Starting, listening to and ending a worker, with cheap stand-ins for it; processes that got away end with it."""

import gc
import os
import time
from pathlib import Path
from threading import Thread

import psutil
import pytest

from suite.records.record import Status
from suite.run import process, resources
from suite.run.forkserver import Forkserver
from suite.run.process import Limits, WorkerProcess
from suite.run.resources import runs

pytestmark = pytest.mark.timeout(60)
DONE = "send(CellResult(status='ok'))"


def open_files():
    gc.collect()  # what others have left open closes now, not between two counts
    return len(list(Path("/proc/self/fd").iterdir()))


def test_cell_arrives_on_standard_input_and_progress_and_outcome_leave_through_the_pipe(worker):
    run = worker("""
        system = Connection(0).recv().cell.system
        send(Progress(phase="train", step=1, steps=2))
        send(CellResult(status=Status.UNSUPPORTED, reason=system))
        time.sleep(60)
    """)
    seen = []
    ended = run(on_progress=seen.append)
    assert (ended.status, ended.reason, ended.phase) == (Status.UNSUPPORTED, "reference", "train")
    assert [(p.step, p.steps) for p in seen] == [(1, 2)]
    assert ended.wall_s < 60


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (OSError(28, "No space left on device"), Status.OOM_DISK, "No space left on device; make room under --out and"),
        (OSError(11, "no more processes"), Status.CRASHED, "could not be started: [Errno 11] no more processes"),
    ],
)
def test_process_that_cannot_be_started_costs_its_own_cell_alone(worker, monkeypatch, error, status, reason):
    def refuse(*_):
        raise error

    monkeypatch.setattr(process, "fork_worker", refuse)
    ended = worker(DONE)()
    assert (ended.status, ended.phase) == (status, "start")
    assert reason in ended.reason


BEATS = """
while True:
    send(Progress(phase="train"))
    time.sleep(0.05)
"""
CHILD_TAKES_MEMORY = """
if not os.fork():
    x = bytearray(200_000_000)
    x[::4096] = b"1" * len(x[::4096])
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "limits", "status", "reason"),
    [
        ('send(Progress(phase="build")); time.sleep(60)', (60, 2, 10**10), Status.TIMEOUT,
         "no sign of life for 2 s in phase 'build'"),
        pytest.param(BEATS, (10, 4, 10**10), Status.TIMEOUT, "still in phase 'train' after 10 s: raise --timeout",
                     marks=pytest.mark.slow),
        (CHILD_TAKES_MEMORY, (40, 40, 200_000_000), Status.OOM_HOST, "the limit is 0.2 GB"),
    ],
)  # fmt: skip
def test_silence_time_and_memory_of_the_whole_tree_are_limited(worker, script, limits, status, reason):
    wall_s, stall_s, host_bytes = limits
    ended = worker(script)(Limits(wall_s=wall_s, stall_s=stall_s, host_bytes=host_bytes))
    assert ended.status is status
    assert reason in ended.reason
    assert ended.wall_s < 60


def test_worker_that_was_done_in_time_is_not_late_because_this_process_stood_still(worker):
    run = worker("""
        send(Progress(phase="train"))
        time.sleep(0.2)
        send(CellResult(status="ok"))
        time.sleep(60)
    """)
    limits = Limits(wall_s=3, stall_s=3, host_bytes=10**10)
    assert run(limits, on_progress=lambda _: time.sleep(3.5)).status is Status.OK


def test_worker_can_be_killed_as_soon_as_it_is_there(tmp_path):
    for number in range(3):
        with WorkerProcess(tmp_path / f"{number}.log") as child:
            assert os.getsid(child.pid) == child.pid
        assert child.returncode == -9


@pytest.mark.parametrize("end", [DONE, "os.kill(os.getpid(), 9)"])
def test_temporary_files_of_a_worker_go_with_it_however_it_ends(worker, tmp_path, end):
    told = tmp_path / "told"
    run = worker(f"""
        import tempfile
        folder = tempfile.mkdtemp()
        open(os.path.join(folder, "rows"), "w").write("1")
        open({str(told)!r}, "w").write(folder)
        {end}
    """)
    run()
    folder = Path(told.read_text())
    assert folder.parent.parent.name.startswith("embedding-offload-bench-")
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit(7)", "the worker ended with exit code 7 and no result"),
        ("os.kill(os.getpid(), 6)", "the worker died of SIGABRT"),
        ("os.kill(os.getpid(), 40)", "the worker died of signal 40"),
        ("answers.close(); sys.exit('boom')", "the worker ended with exit code 1 and no result; its last line: boom"),
    ],
)
def test_death_without_a_word_is_told_by_how_it_came(worker, script, reason):
    ended = worker(script)()
    assert (ended.status, ended.reason) == (Status.CRASHED, reason)


@pytest.mark.parametrize(("kills", "status"), [([5, 5], Status.CRASHED), ([5, 6], Status.OOM_HOST)])
def test_kill_is_blamed_on_memory_only_if_the_kernel_counted_one(worker, tmp_path, monkeypatch, kills, status):
    counts = tmp_path / "vmstat"
    counts.write_text(f"pgfault 9\noom_kill {kills[0]}\n")
    monkeypatch.setattr(resources, "_KERNEL_COUNTS", counts)
    run = worker(f"""
        text = open({str(counts)!r}).read().replace("oom_kill {kills[0]}", "oom_kill {kills[1]}")
        open({str(counts)!r}, "w").write(text)
        os.kill(os.getpid(), 9)
    """)
    outcome = run()
    assert outcome.status is status
    assert "killed" in outcome.reason


def test_run_leaves_no_file_descriptor_open(worker):
    run = worker(DONE)
    run()  # the process that forks workers stays
    before = open_files()
    run()
    assert open_files() == before


def test_ctrl_c_ends_the_tree_and_says_in_which_phase(worker, tmp_path):
    run = worker(f"""
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        send(Progress(phase="verify"))
        time.sleep(60)
    """)

    def ctrl_c(_):
        raise KeyboardInterrupt

    ended = run(on_progress=ctrl_c)
    assert (ended.status, ended.phase) == (Status.INTERRUPTED, "verify")
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_process_that_forks_workers_is_replaced_when_it_was_killed_and_its_worker_goes_on(worker):
    run = worker(f"""
        send(Progress(phase="train"))
        time.sleep(0.5)
        {DONE}
    """)
    assert run(on_progress=lambda _: Forkserver.kept.process.kill()).status is Status.OK
    assert run().status is Status.OK


@pytest.mark.parametrize("end", [f"{DONE}; time.sleep(60)", "os.kill(os.getpid(), 9)", "time.sleep(60)"])
def test_process_that_left_session_and_parent_ends_with_its_worker_whose_end_it_cannot_hide(worker, tmp_path, end):
    """It holds all file descriptors open, and memory that takes a while to go."""
    told = tmp_path / "told"
    run = worker(f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                memory = b"1" * 2 * 10**8
                open({str(told)!r}, "w").write(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        os.wait()
        while not os.path.exists({str(told)!r}) or not open({str(told)!r}).read():
            time.sleep(0.01)
        {end}
    """)
    ended = run(Limits(wall_s=3, stall_s=40, host_bytes=8 * 10**9))
    assert not runs(int(told.read_text()))
    assert ended.wall_s < 20


def test_process_that_got_away_from_one_worker_is_left_alone_while_that_one_lives(worker, tmp_path):
    """The end of another worker, forked by the same process, is no reason to kill it."""
    told, ended = tmp_path / "told", tmp_path / "ended"
    run = worker(f"""
        os.environ.clear()
        if os.path.exists({str(told)!r}):
            {DONE}
            sys.exit()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open({str(told)!r}, "w").write(str(os.getpid()))
                os.execve("/bin/sleep", ["sleep", "600"], {{}})
            os._exit(0)
        while not os.path.exists({str(ended)!r}):
            time.sleep(0.01)
        {DONE}
    """)
    first = Thread(target=run)
    first.start()
    while not told.exists() or not told.read_text():
        time.sleep(0.01)
    run()
    time.sleep(0.2)
    alive = runs(int(told.read_text()))
    ended.touch()
    first.join()
    assert alive
    assert not runs(int(told.read_text()))
