"""Temporary directories of cells, and how much fits there.

Whatever a cell keeps in temporary files, as a file tier does, lies in a directory of its own. It goes with the cell,
and where the run itself was killed, with the next run.
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
"""Of a cell's directory: the number of the process that made it, and what `mkdtemp` adds."""


@contextmanager
def cell_directory() -> Iterator[tuple[Path, int]]:
    """A directory for one cell, removed after it.

    Yields:
        The directory, and the file descriptor that keeps it from being removed by other runs. A worker that inherits
        this one keeps the directory for as long as it lives, even after the run that started it was killed.

    Raises:
        OSError: it cannot be made.
    """
    parent = _parent()
    with locked(parent / _LOCK, wait=True):  # until the new directory is locked too, nobody may look for dead ones
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        held = locked(folder / _LOCK)
    with held:
        try:
            yield folder, held.fileno()
        finally:
            with locked(parent / _LOCK, wait=True):  # whoever looks meanwhile would take it for a killed one's
                shutil.rmtree(folder, ignore_errors=True)


def remove_left() -> list[Path]:
    """Remove the directories of cells whose run and worker are both gone.

    Returns:
        What was removed.

    Raises:
        PermissionError: the folder that holds them is not this user's alone.
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
    """Whether a folder is one that `cell_directory` made: by its name, and no link."""
    return _NAME.fullmatch(path.name) is not None and stat.S_ISDIR(path.lstat().st_mode)


def free_bytes() -> tuple[Path, int]:
    """The directory of temporary files, and the bytes that this user may still write there."""
    folder = Path(tempfile.gettempdir())
    return folder, shutil.disk_usage(folder).free


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that a drive or the quota on it is full."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _parent() -> Path:
    """One folder for all cells of a user: a name is short, because sockets below it may have 107 characters in all.

    Raises:
        OSError: it is somebody else's or a link, and what is removed there might be anybody's; or it cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"embedding-offload-bench-{os.getuid()}"
    return own_folder(folder)
