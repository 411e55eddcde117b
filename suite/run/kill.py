"""Killing a worker with all its processes, and the result of a worker that ended by itself."""

import ctypes
import os
import signal
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

import psutil

from suite.records.record import Status
from suite.run.logs import last_line
from suite.run.messages import CellResult

GRACE_S = 10.0
"""Seconds that a worker may take to end after its last message, or to be reaped after a kill."""
_ORPHANS_S = 5.0
"""Seconds to wait for the end of a worker's orphans."""
_SET_CHILD_SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux's prctl.h."""
_ENTER_S = 1.0
"""Seconds that a process may take in exec."""
MARK = "EMBEDDING_BENCH_WORKER"
"""Environment variable with a value per worker. All processes of a worker inherit it, and are found by it even after
they left the session and lost their parent."""
NO_MARK = 32 * "0"
"""Placeholder of the length of every mark."""
_KILL_COUNTS = tuple(
    map(Path, ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"))
)
"""Files in which the kernel counts its out-of-memory kills: cgroup v2, cgroup v1, the whole machine."""


def set_mark(mark: str) -> None:
    """Overwrite this process's mark in its initial environment, where other processes read it.

    Must run before anything else changes the variable.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    where = libc.getenv(MARK.encode())
    assert len(mark) == len(NO_MARK) and os.environ[MARK] == NO_MARK, mark
    ctypes.memmove(where, mark.encode(), len(mark))


def adopt_orphans() -> None:
    """Make this process the child subreaper: orphaned descendants are reparented to it.

    The setting persists across exec, forked processes do not inherit it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt what its children leave behind")


def kill_children(*, spare: Container[int]) -> None:
    """Kill all children of this process except `spare`, and the orphans that these leave to it, and reap them."""
    end = time.monotonic() + _ORPHANS_S
    while time.monotonic() < end:
        found = [child for child in psutil.Process().children() if child.pid not in spare]
        if not found:
            return
        for child in found:
            with suppress(psutil.Error):
                child.kill()
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        time.sleep(0.002)


def kill_marked(mark: str, *, spare: int) -> None:
    """Kill every process that inherited this mark except the process `spare`, until none is left that can be killed.

    Waits until they have ended: a large process takes a second to free its memory after the kill.
    """
    psutil.process_iter.cache_clear()  # PIDs may have been reused
    seen: set[int] = {spare}
    while found := [process for process in psutil.process_iter() if process.pid not in seen and _has(process, mark)]:
        for process in found:
            seen.add(process.pid)
            with suppress(psutil.Error):
                process.kill()
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and any(map(runs, seen - {spare})):
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return _environment(process).get(MARK) == mark
    except (psutil.Error, OSError):
        return False  # gone, or another user's


def _environment(process: psutil.Process) -> dict[str, str]:
    """Initial environment of a process. During exec the kernel shows none: waits for the end of exec."""
    end = time.monotonic() + _ENTER_S
    while not process.environ() and _enters(process) and time.monotonic() < end:
        time.sleep(0.002)
    environment: dict[str, str] = process.environ()
    return environment


def _enters(process: psutil.Process) -> bool:
    """Whether a process is in exec: it has memory, unlike kernel threads, and no arguments or environment yet."""
    return bool(process.memory_info().vms and not process.cmdline())


def post_mortem(returncode: int | None, *, log: Path, kernel_killed: bool) -> CellResult:
    """Result of a worker that ended without one, from its exit code and log."""
    if returncode == -signal.SIGKILL and kernel_killed:
        return CellResult(status=Status.OOM_HOST, reason="the kernel killed the worker for want of memory")
    if returncode == -signal.SIGKILL:
        reason = "the worker was killed from outside (SIGKILL): by a person, a job scheduler or for want of memory"
    elif returncode is not None and returncode < 0:
        reason = f"the worker died of {_signal_name(-returncode)}"
    else:
        reason = f"the worker ended with exit code {returncode} and no result"
    last = last_line(log)
    return CellResult(status=Status.CRASHED, reason=reason + (f"; its last line: {last}" if last else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a realtime signal


def kernel_kills() -> int:
    """Number of the kernel's out-of-memory kills, in this cgroup if there is one."""
    return next((kills for path in _KILL_COUNTS if (kills := kills_in(path)) is not None), 0)


def kills_in(path: Path) -> int | None:
    """Number of out-of-memory kills in a file of the kernel; None if the file does not count them."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
