"""A run with rows on a drive that is killed: its files and memory control group go, with the next run at the latest."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.run import locks, memory_group
from suite.run.memory_group import group_of
from tests.faults.cells import needs_memory_groups, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0
RUN = """
import sys
from pathlib import Path
from suite.run.worker import RunCell
from suite.run.process import WorkerProcess
from tests.faults.cells import GENEROUS, tiny_cell

if __name__ == "__main__":
    cell = tiny_cell(
        "freq_cache[tier=file]", cache_ratio=None, host_budget_bytes=1 << 28, max_rows=20_000, train_steps=10**6
    )
    with WorkerProcess(Path(sys.argv[1])) as worker:
        print(worker.pid, flush=True)
        worker.ask(RunCell(cell=cell))
        print(worker.answer(GENEROUS, lambda progress: print(progress.phase, flush=True)).status, flush=True)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def training(temporary: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A run whose worker trains a system that keeps rows on a drive; the worker, and its memory control group."""
    needs_memory_groups()
    log = tmp_path / "worker.log"
    run = subprocess.Popen([sys.executable, "-c", RUN, str(log)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    worker = int(run.stdout.readline())
    for phase in run.stdout:
        if phase.strip() == "train":
            break
    group = group_of(worker)
    assert run.poll() is None, log.read_text()
    assert group.is_dir()
    assert row_files(temporary)
    yield run, worker, group
    run.kill()
    run.communicate()


def row_files(temporary: Path) -> list[Path]:
    return [path for path in temporary.rglob("rows.bin") if path.stat().st_size]


def test_next_run_removes_files_and_group_of_a_run_that_was_killed_with_its_worker(
    training: tuple[subprocess.Popen[str], int, Path], temporary: Path
) -> None:
    run, worker, group = training
    assert locks.remove_stale() == []
    memory_group.remove_stale_groups()
    assert group.is_dir()
    os.kill(worker, signal.SIGSTOP)  # else it hears of its parent's end and ends itself
    os.kill(run.pid, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    run.wait()
    removals: list[Path] = []

    def removed_some() -> bool:
        removals.extend(locks.remove_stale())  # a thread of the worker may hold the files a moment longer
        return bool(removals)

    wait_until(removed_some)
    (removed,) = removals
    assert removed.parent.parent == temporary
    # unless a run of another test, beside this one, was first
    wait_until(lambda: bool(memory_group.remove_stale_groups()) or not group.exists())
    wait_until(lambda: not group.exists())
    assert list(removed.parent.iterdir()) == []


def test_worker_that_was_killed_alone_leaves_nothing_even_before_the_next_run(
    training: tuple[subprocess.Popen[str], int, Path], temporary: Path
) -> None:
    run, worker, group = training
    os.kill(worker, signal.SIGKILL)
    said, _ = run.communicate(timeout=SOON_S)
    assert said.split()[-1] in ("crashed", "oom_host")  # the kernel may have killed another just then
    assert run.returncode == 0
    assert not group.exists()
    assert locks.remove_stale() == []
    assert [path for path in temporary.rglob("*") if path.is_file() and path.name != ".lock"] == []
