"""Temporary directories of cells: whose they are, and when they go."""

import os
import tempfile
from pathlib import Path

import pytest

from suite.run.locks import cell_directory, remove_stale


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ours(temporary):
    return temporary / f"embedding-offload-bench-{os.getuid()}"


def test_only_directories_that_cells_made_are_removed(temporary):
    with cell_directory() as made:
        pass
    parent, data = made.parent, temporary / "data"
    data.mkdir()
    (data / "thesis").write_text("1")
    (parent / "kept").mkdir()
    (parent / "12-abcdefgh").symlink_to(data, target_is_directory=True)
    (parent / "13-abcdefgh").write_text("a file")
    (parent / "14-abcdefgh").mkdir()
    assert remove_stale() == [parent / "14-abcdefgh"]
    assert sorted(path.name for path in parent.iterdir()) == ["12-abcdefgh", "13-abcdefgh", "kept"]
    assert [path.name for path in data.iterdir()] == ["thesis"]


@pytest.mark.parametrize(("mode", "owner"), [(0o702, 0), (0o720, 0), (0o700, 1)])
def test_folder_that_others_own_or_can_write_is_refused(temporary, monkeypatch, mode, owner):
    (ours(temporary) / "12-abcdefgh").mkdir(parents=True)
    seen = os.stat_result((0o40000 | mode, *([0] * 3), os.getuid() + owner, *([0] * 5)))
    monkeypatch.setattr(Path, "lstat", lambda path: seen)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        remove_stale()
    assert (ours(temporary) / "12-abcdefgh").exists()


def test_folder_is_closed_to_others_whatever_the_umask(temporary):
    before = os.umask(0)
    try:
        with cell_directory() as made:
            assert (made.parent.lstat().st_mode & 0o777, made.lstat().st_mode & 0o777) == (0o700, 0o700)
    finally:
        os.umask(before)
