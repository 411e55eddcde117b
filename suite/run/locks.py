"""One run at a time: in a results directory, and on a device, where two at once would spoil each other's timings.

A lock is an open file: closing it lets go, and the kernel closes it when its process ends, however that comes about.
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
"""Environment variable: folder of the locks of devices. Runs with different folders do not know of each other."""


class Locked(RuntimeError):
    """Another run has the results directory or the device; the message says what to do."""


def one_run_in(out: Path) -> IO[str]:
    """Hold a results directory, made where it is missing.

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
    """Hold a device, as `suite.records.environment.device_name` names it, for the run that writes to `out`.

    Raises:
        Locked: another run of this user has the device; the message names its process and its results directory.
        StoreError: the lock cannot be made.
    """
    # not under TMPDIR, which may differ from run to run
    named = os.environ.get(PLACE)
    folder = Path(named or f"/tmp/embedding-offload-bench-{os.getuid()}")
    path = folder / f"{device}.lock"
    try:
        if named:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whose it is, is the user's choice
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
    """A folder of this user's, made where it is missing and closed to others, where anybody may have made something.

    Raises:
        PermissionError: it is a link or no folder, it is somebody else's, or others can write there.
        OSError: it cannot be made.
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
    """Lock a file, made where it is missing.

    Raises:
        BlockingIOError: somebody else has it, and `wait` is not set.
        OSError: it cannot be opened.
    """
    # no link is followed: the folder may lie where others can write
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
    return f"see who has {path} open"  # it has not signed yet
