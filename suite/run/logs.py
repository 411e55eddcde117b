"""Logs of workers: what a worker writes, but no more than a drive can spare."""

import ctypes
import os
from pathlib import Path

MOST_BYTES = 16 << 20
"""What a log may take of the drive before it is cut."""
KEPT_BYTES = 1 << 20
"""Of a log that is cut, what is kept of its beginning, and as much of its end."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Of Linux's falloc.h."""


class Log:
    """The file that a worker writes its output to, and all that it starts.

    The worker writes to the file itself, at its end, and never waits for anybody.

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
        """Give the drive back what lies between beginning and end, if the log takes too much of it."""
        size = os.fstat(self._fd).st_size
        if size - self._freed <= MOST_BYTES:
            return
        start, stop = max(KEPT_BYTES, self._freed), size - KEPT_BYTES
        if _free(self._fd, start, stop):
            self._freed = stop
        else:
            self._shorten(size)  # some of what is written at this moment may go, too

    def close(self) -> None:
        """End it, once nobody writes to it: a line in the place of what was cut says so."""
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
    """Give back the blocks of a part of a file, which then reads as zeros. False: its file system cannot do that."""
    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, stop - start) == 0)


def last_line(log: Path) -> str:
    """The last line of a log that has words, its first 200 characters; empty: there is none."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
