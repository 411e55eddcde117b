"""The measurement of a drive: by fio, by the suite itself, and where it cannot be done."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from suite.run import drive
from suite.run.drive import IN_MEMORY, CannotMeasure, file_system, measure

SMALL = {"file_bytes": 4 << 20, "seconds": 0.1}


@pytest.fixture
def folder(tmp_path):
    """On a drive."""
    if file_system(tmp_path) in IN_MEMORY:
        pytest.skip("the temporary directory is in memory")
    return tmp_path


@pytest.mark.parametrize("by", ["fio", "the suite itself"])
def test_reads_are_counted_and_the_file_is_gone(folder, monkeypatch, by):
    if by == "the suite itself":
        monkeypatch.setenv("PATH", str(folder))
    elif shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    speed = measure(folder, **SMALL)
    assert speed.measured_by.startswith(by)
    assert speed.reads_per_s_depth_1 > 0
    assert speed.reads_per_s_depth_32 > 0
    assert (speed.read_bytes, speed.file_system) == (4096, file_system(folder))
    assert list(folder.iterdir()) == []


def test_fio_that_fails_leaves_it_to_the_suite(folder, monkeypatch):
    (folder / "fio").write_text("#!/bin/sh\necho engine libaio not loadable >&2\nexit 1\n")
    (folder / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert measure(folder, **SMALL).measured_by == "the suite itself"


def test_file_system_in_memory_is_no_drive():
    shared = Path("/dev/shm")
    if not shared.is_dir() or file_system(shared) not in IN_MEMORY:
        pytest.skip("no file system in memory at /dev/shm")
    with pytest.raises(CannotMeasure, match="lies in memory and is no drive: set TMPDIR"):
        measure(shared, **SMALL)


def test_file_system_without_direct_reads_is_told_and_the_file_is_gone(folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(drive, "_by_fio", lambda *_: None)
    monkeypatch.setattr(drive, "_by_threads", refuse)
    with pytest.raises(
        CannotMeasure, match=r"cannot be read past the page cache here \(Invalid argument\): set TMPDIR"
    ):
        measure(folder, **SMALL)
    assert list(folder.iterdir()) == []


def test_full_drive_is_told_with_what_to_do(folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(drive, "_write", refuse)
    with pytest.raises(CannotMeasure, match=r"has no room for .* MB to read: make room, or set TMPDIR"):
        measure(folder, **SMALL)
