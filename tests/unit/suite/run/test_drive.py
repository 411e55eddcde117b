"""The measurement of a drive, and where it cannot be done."""

import errno
import os
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


def test_reads_are_counted_and_the_file_is_gone(folder):
    speed = measure(folder, **SMALL)
    assert speed.reads_per_s_depth_1 > 0
    assert speed.reads_per_s_depth_32 > 0
    assert (speed.read_bytes, speed.file_system) == (4096, file_system(folder))
    assert list(folder.iterdir()) == []


def test_file_system_in_memory_is_no_drive():
    shared = Path("/dev/shm")
    if not shared.is_dir() or file_system(shared) not in IN_MEMORY:
        pytest.skip("no file system in memory at /dev/shm")
    with pytest.raises(CannotMeasure, match="lies in memory and is no drive: set TMPDIR"):
        measure(shared, **SMALL)


def test_drive_that_refuses_is_told_with_what_to_do_and_the_file_is_gone(folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(drive, "_reads_per_s", refuse)
    with pytest.raises(CannotMeasure, match=r"cannot be measured here \(Invalid argument\): set TMPDIR"):
        measure(folder, **SMALL)
    assert list(folder.iterdir()) == []
