"""Logs of workers, limited in size."""

import ctypes
import os
from pathlib import Path

MOST_BYTES = 16 << 20
"""Maximum bytes of a log on the drive before it is cut."""
KEPT_BYTES = 1 << 20
"""Bytes kept of the beginning of a log that is cut, and of its end."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Flags of `fallocate`, from Linux's falloc.h."""


class Log:
    """The file for the output of a worker and its child processes.

    The worker appends to the file itself, and never waits for the parent.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._freed = 0
        self._cut_bytes = 0
        self._mark = b""

    def fileno(self) -> int:
        """The file descriptor that a worker inherits."""
        return self._fd

    def cut(self) -> None:
        """Free the blocks between beginning and end, if the log takes more than `MOST_BYTES`."""
        size = os.fstat(self._fd).st_size
        if size - self._freed <= MOST_BYTES:
            return
        start, stop = max(KEPT_BYTES, self._freed), size - KEPT_BYTES
        if _free(self._fd, start, stop):
            self._freed = stop
        else:
            self._shorten(size)  # output written at this moment may be lost too

    def close(self) -> None:
        """Close the log, once no process writes to it; a line replaces the part that was cut."""
        size = os.fstat(self._fd).st_size
        if size > MOST_BYTES:
            self._shorten(size)
        os.close(self._fd)

    def _shorten(self, size: int) -> None:
        end = os.pread(self._fd, KEPT_BYTES, size - KEPT_BYTES)
        self._cut_bytes += size - 2 * KEPT_BYTES - len(self._mark)
        self._mark = f"\n[{self._cut_bytes:,} bytes of output were cut out here]\n".encode()
        os.ftruncate(self._fd, KEPT_BYTES)
        os.write(self._fd, self._mark + end)


def _free(fd: int, start: int, stop: int) -> bool:
    """Free the blocks of a part of a file, which then reads as zeros. False: the file system does not support that."""
    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, stop - start) == 0)


def last_line(log: Path) -> str:
    """The first 200 characters of the last line of a log that is not blank; empty if there is none."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
