"""Locks of results directories and devices, where two runs would distort timings, and temporary directories of cells.

A lock is an open file: closing it releases the lock, and the kernel closes it when the process ends in any way.

All temporary files of a cell, such as those of a file tier, are in a directory of its own. It is removed at the end of
the cell or, if the run itself was killed, by the next run.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from suite.records.store import StoreError

PLACE = "EMBEDDING_BENCH_LOCKS"
"""Environment variable: folder of the locks of devices. Runs with different folders do not exclude each other."""

_LOCK, _NEW = ".lock", "new-"
_NAME = re.compile(r"[0-9]+-[a-z0-9_]{8}")
"""Name of a cell's directory: PID of the process that made it, and the suffix of `mkdtemp`."""


class Locked(RuntimeError):
    """Another run has locked the results directory or the device; the message names the remedy."""


def one_run_in(out: Path) -> IO[str]:
    """Lock a results directory, which is created if missing.

    Raises:
        Locked: another run writes to it.
        StoreError: it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        return locked(out / _LOCK)
    except BlockingIOError:
        raise Locked(f"another run is writing to {out}: wait for it, or choose another directory with --out") from None
    except OSError as error:
        raise StoreError(f"cannot write to {out}: {error.strerror}; choose another directory with --out") from error


def one_run_on(device: str) -> IO[str]:
    """Lock a device, as `suite.records.environment.device_name` names it.

    Raises:
        Locked: another run of this user has the device.
        StoreError: the lock cannot be created.
    """
    # not under TMPDIR, which may differ between runs
    folder = Path(os.environ.get(PLACE) or f"/tmp/embedding-offload-bench-{os.getuid()}")
    path = folder / f"{device}.lock"
    try:
        own_folder(folder)
        return locked(path)
    except BlockingIOError:
        raise Locked(
            f"another run is using the device {device} (`fuser {path}` names its process): wait for it, two at once "
            "would spoil each other's timings"
        ) from None
    except OSError as error:
        raise StoreError(
            f"cannot lock the device {device} in {folder}: {error.strerror}; name a folder of yours that can be "
            f"written in the environment variable {PLACE}"
        ) from error


def own_folder(path: Path) -> Path:
    """Create or check a private folder of this user, in a parent where every user can write.

    Raises:
        PermissionError: it is a link or no folder, another user's, or writable by others.
        OSError: it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "it is not a folder of this user alone", str(path))
    return path


def locked(path: Path) -> IO[str]:
    """Lock a file, which is created if missing.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it cannot be opened.
    """
    # O_NOFOLLOW: other users may be able to write to the folder
    stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        stream.close()
        raise
    return stream


@contextmanager
def cell_directory() -> Iterator[Path]:
    """A directory for one cell, removed after it; its lock keeps other runs from removing it before.

    Raises:
        OSError: the directory cannot be created.
    """
    parent = _parent()
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    with locked(new / _LOCK):
        # no other run looks at it before it has its name, and then it is locked
        folder = new.rename(parent / f"{os.getpid()}-{new.name.removeprefix(_NEW)}")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_stale() -> list[Path]:
    """Remove the directories of cells whose run is gone; a worker that has not seen that yet ends without them.

    Returns:
        The removed directories.

    Raises:
        PermissionError: the parent folder is not private to this user.
        OSError: it cannot be written.
    """
    removed = []
    for folder in sorted(_parent().iterdir()):
        if not _NAME.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue  # made by others, or a link
        with suppress(BlockingIOError, FileNotFoundError), locked(folder / _LOCK):  # in use, or just removed
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                removed.append(folder)
    return removed


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
