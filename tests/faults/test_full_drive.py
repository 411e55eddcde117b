"""A drive that fills up beside a run: the system that wanted to write ends as `oom_disk`, others come and go on."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from suite.records.record import Status
from suite.run.forkserver import fork_worker
from suite.run.memory_group import group_of
from suite.run.worker import Progress
from tests.faults.cells import needs_memory_groups, run, tiny_cell
from tests.faults.drives import SmallDrive, small_drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20
DRIVE_BYTES = 128 * MIB
LEFT_BYTES = 24 * MIB
"""More than the small tables of verification take, less than the tables that are trained."""
TABLES = {"host_budget_bytes": 32 * MIB, "cache_ratio": None, "embedding_dim": 256, "max_rows": 40_000}
AHEAD = "freq_cache[look_ahead=4,tier=file]"


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDrive]:
    """Where temporary files go."""
    with small_drive(tmp_path, DRIVE_BYTES) as drive:
        monkeypatch.setattr(tempfile, "tempdir", str(drive.path))
        yield drive


@pytest.fixture(autouse=True, scope="module")
def held() -> None:
    needs_memory_groups()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the workers that a test starts."""
    started = []

    def fork(*args: Any) -> int:
        started.append(fork_worker(*args))
        return started[-1]

    monkeypatch.setattr("suite.run.process.fork_worker", fork)
    return started


@pytest.mark.parametrize("system", ["mapped_table", "rocksdb_table", "freq_cache[tier=file]", AHEAD])
def test_drive_that_others_fill_ends_a_cell_as_oom_disk_and_nothing_of_it_is_left(
    drive: SmallDrive, tmp_path: Path, workers: list[int], system: str
) -> None:
    before = used_bytes(drive)
    others = Others(drive, phase="verify", left_bytes=LEFT_BYTES)
    ended = run(tiny_cell(system, **TABLES), tmp_path, on_progress=others)
    assert ended.status is Status.OOM_DISK, ended.reason
    assert "No space left on device" in ended.reason
    assert "make room, or set TMPDIR to a directory on a drive with more" in ended.reason
    assert ended.phase == "build"
    if system == "mapped_table":
        assert run(tiny_cell("full_ram", **TABLES), tmp_path).status is Status.OK  # it needs no room there
    others.file.unlink()
    assert used_bytes(drive) - before < MIB
    groups = [group_of(worker) for worker in workers]
    assert workers and not any(group.exists() for group in groups)
    if system == "mapped_table":
        assert run(tiny_cell(system, **TABLES), tmp_path).status is Status.OK


def test_drive_that_others_fill_while_a_system_trains_ends_its_cell_as_oom_disk(
    drive: SmallDrive, tmp_path: Path
) -> None:
    others = Others(drive, phase="train", step=1, left_bytes=0)
    # it writes to new places; a mapped table overwrites its file, RocksDB's memtables take all rows there are
    cell = tiny_cell(AHEAD, **TABLES, batch_size=64, train_steps=2000)
    ended = run(cell, tmp_path, on_progress=others)
    assert ended.status is Status.OOM_DISK, ended.reason
    assert ended.phase == "train"


class Others:
    """Fill a drive when a cell comes to a phase, but for some bytes.

    Attributes:
        file: With which.
    """

    def __init__(self, drive: SmallDrive, *, phase: str, step: int = 0, left_bytes: int) -> None:
        self.file = drive.path / "of somebody else"
        self._drive, self._phase, self._step, self._left_bytes = drive, phase, step, left_bytes

    def __call__(self, progress: Progress) -> None:
        far_enough = progress.phase == self._phase and progress.step >= self._step
        if far_enough and not self.file.exists():
            with self.file.open("wb", buffering=0) as file, suppress(OSError):  # it is full
                os.posix_fallocate(file.fileno(), 0, free_bytes(self._drive) - max(self._left_bytes, MIB))
                while not self._left_bytes:
                    file.seek(0, os.SEEK_END)
                    file.write(bytes(4096))


def free_bytes(drive: SmallDrive) -> int:
    found = os.statvfs(drive.path)
    return found.f_bavail * found.f_frsize


def used_bytes(drive: SmallDrive) -> int:
    found = os.statvfs(drive.path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
