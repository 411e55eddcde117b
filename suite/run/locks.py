"""Locks that allow one run at a time in a results directory and on a device, where two would distort timings.

A lock is an open file: closing it releases the lock, and the kernel closes it when the process ends in any way.
"""

import errno
import fcntl
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from suite.records.store import StoreError

PLACE = "EMBEDDING_BENCH_LOCKS"
"""Environment variable: folder of the locks of devices. Runs with different folders do not exclude each other."""


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
        return _signed(out / ".lock", out)
    except BlockingIOError:
        raise Locked(f"another run is writing to {out}: wait for it, or choose another directory with --out") from None
    except OSError as error:
        raise StoreError(f"cannot write to {out}: {error.strerror}; choose another directory with --out") from error


def one_run_on(device: str, out: Path) -> IO[str]:
    """Lock a device, as `suite.records.environment.device_name` names it, for the run that writes to `out`.

    Raises:
        Locked: another run of this user has the device; the message names its process and its results directory.
        StoreError: the lock cannot be created.
    """
    # not under TMPDIR, which may differ between runs
    named = os.environ.get(PLACE)
    folder = Path(named or f"/tmp/embedding-offload-bench-{os.getuid()}")
    path = folder / f"{device}.lock"
    try:
        if named:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its owner is not checked: the user has chosen it
        else:
            own_folder(folder)
        return _signed(path, out)
    except BlockingIOError:
        raise Locked(
            f"another run is using the device {device}: {_holder(path)}; wait for it, two at once would spoil each "
            "other's timings"
        ) from None
    except OSError as error:
        raise StoreError(
            f"cannot lock the device {device} in {folder}: {error.strerror}; name a folder of yours that can be "
            f"written in the environment variable {PLACE}"
        ) from error


def own_folder(path: Path) -> Path:
    """Create or check a private folder of this user, in a parent where every user can write.

    Raises:
        PermissionError: it is a link or not a folder, another user's, or writable by others.
        OSError: it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is a link, or no folder"
    elif found.st_uid != os.getuid():
        wrong = f"belongs to another user, number {found.st_uid}"
    elif found.st_mode & 0o022:
        wrong = "can be written by others"
    else:
        return path
    raise PermissionError(errno.EPERM, f"it {wrong}", str(path))


def locked(path: Path, *, wait: bool = False) -> IO[str]:
    """Lock a file, which is created if missing.

    Raises:
        BlockingIOError: another process has locked it, and `wait` is not set.
        OSError: it cannot be opened.
    """
    # O_NOFOLLOW: other users may be able to write to the folder
    stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        stream.close()
        raise
    return stream


def _signed(path: Path, out: Path) -> IO[str]:
    stream = locked(path)
    stream.truncate()
    json.dump({"pid": os.getpid(), "out": str(out.absolute())}, stream)
    stream.flush()
    return stream


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(path.read_text())
        return f"process {held['pid']} writes to {held['out']}"
    return f"see who has {path} open"  # its PID is not written yet
