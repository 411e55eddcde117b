"""Temporary directories of cells, and their free space.

All temporary files of a cell, such as those of a file tier, are in a directory of its own. It is removed at the end of
the cell or, if the run itself was killed, by the next run.
"""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suite.run.locks import locked, own_folder

_LOCK = ".lock"
_NAME = re.compile(r"[0-9]+-[a-z0-9_]{8}")
"""Name of a cell's directory: PID of the process that made it, and the suffix of `mkdtemp`."""


@contextmanager
def cell_directory() -> Iterator[tuple[Path, int]]:
    """A directory for one cell, removed after it.

    Yields:
        The directory, and the file descriptor of its lock, which keeps other runs from removing it. A worker that
        inherits the descriptor keeps the directory while it lives, even after its run was killed.

    Raises:
        OSError: the directory cannot be created.
    """
    parent = _parent()
    with locked(parent / _LOCK, wait=True):  # no other run may look for stale directories before the new one is locked
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        held = locked(folder / _LOCK)
    with held:
        try:
            yield folder, held.fileno()
        finally:
            with locked(parent / _LOCK, wait=True):  # another run would take it for a stale one
                shutil.rmtree(folder, ignore_errors=True)


def remove_left() -> list[Path]:
    """Remove the directories of cells whose run and worker are both gone.

    Returns:
        The removed directories.

    Raises:
        PermissionError: the parent folder is not private to this user.
        OSError: it cannot be written.
    """
    removed = []
    parent = _parent()
    with locked(parent / _LOCK, wait=True):
        for folder in sorted(path for path in parent.iterdir() if _made_here(path)):
            try:
                held = locked(folder / _LOCK)
            except BlockingIOError:  # it is in use
                continue
            with held:
                shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                removed.append(folder)
    return removed


def _made_here(path: Path) -> bool:
    """Whether `cell_directory` made a folder: it has such a name and is not a link."""
    return _NAME.fullmatch(path.name) is not None and stat.S_ISDIR(path.lstat().st_mode)


def free_bytes() -> tuple[Path, int]:
    """The directory of temporary files, and the bytes that this user may still write there."""
    folder = Path(tempfile.gettempdir())
    return folder, shutil.disk_usage(folder).free


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one of its causes, means that a drive or the quota on it is full."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _parent() -> Path:
    """One folder for all cells of a user, with a short name, because paths of sockets below it have 107 characters.

    Raises:
        OSError: it is another user's or a link, so files there may not be ours to remove; or it cannot be created.
    """
    folder = Path(tempfile.gettempdir()) / f"embedding-offload-bench-{os.getuid()}"
    return own_folder(folder)
