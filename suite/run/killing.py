"""Ending a worker with everything that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from suite.run.starting import Process

GRACE_S = 10.0
"""How long a worker may take to end after its last word, or to be reaped after a kill."""
MARK = "EMBEDDING_BENCH_WORKER"
"""Environment variable with a value per worker. All that a worker starts inherits it, and is found by it even after it
left the session and lost its parent."""
NO_MARK = 32 * "0"
"""Has the length of every mark."""


def set_mark(mark: str) -> None:
    """Change this process's mark where others read it: in the environment that it was started with.

    Before anything else changes the variable.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    where = libc.getenv(MARK.encode())
    assert len(mark) == len(NO_MARK) and os.environ[MARK] == NO_MARK, mark
    ctypes.memmove(where, mark.encode(), len(mark))


def kill_tree(process: Process, *, mark: str) -> None:
    """Kill a process, its session and whatever carries its mark, and reap it; one that is gone already does no harm."""
    with suppress(ProcessLookupError):  # the whole group may have ended
        os.killpg(process.pid, signal.SIGKILL)
    kill_marked(mark, spare=os.getpid())
    with suppress(subprocess.TimeoutExpired):  # stuck in a driver's call: the other cells go on
        process.wait(GRACE_S)
    process.close()


def kill_marked(mark: str, *, spare: int) -> None:
    """Kill every process that inherited this mark but the process `spare`, until there is none that can be killed."""
    seen: set[int] = {spare}
    while found := [process for process in psutil.process_iter() if process.pid not in seen and _has(process, mark)]:
        for process in found:
            seen.add(process.pid)
            with suppress(psutil.Error):
                process.kill()


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False  # gone, or another user's
