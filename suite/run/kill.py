"""Ending a worker with everything that it started, and telling what became of one that ended by itself."""

import ctypes
import os
import signal
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

import psutil

from suite.records.status import Status
from suite.run.logs import last_line
from suite.run.messages import CellResult

GRACE_S = 10.0
"""How long a worker may take to end after its last word, or to be reaped after a kill."""
_ORPHANS_S = 5.0
"""How long the end of what a worker left behind is waited for."""
_SET_CHILD_SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux's prctl.h."""
_ENTER_S = 1.0
"""How long a process may take to enter a program."""
MARK = "EMBEDDING_BENCH_WORKER"
"""Environment variable with a value per worker. All that a worker starts inherits it, and is found by it even after it
left the session and lost its parent."""
NO_MARK = 32 * "0"
"""Has the length of every mark."""
_KILL_COUNTS = tuple(
    map(Path, ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"))
)
"""Where the kernel counts its kills for want of memory: cgroup v2, cgroup v1, the whole machine."""


def set_mark(mark: str) -> None:
    """Change this process's mark where others read it: in the environment that it was started with.

    Before anything else changes the variable.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    where = libc.getenv(MARK.encode())
    assert len(mark) == len(NO_MARK) and os.environ[MARK] == NO_MARK, mark
    ctypes.memmove(where, mark.encode(), len(mark))


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of all its descendants whose own parent ends, until it ends itself.

    The programs that it enters keep to that, the processes that it forks do not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt what its children leave behind")


def kill_children(*, spare: Container[int]) -> None:
    """Kill every child of this process but those to be spared, and what these leave to it, and wait for their end."""
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
    """Kill every process that inherited this mark but the process `spare`, until there is none that can be killed.

    Waits until they have ended: a large process lets go of its memory for a second after the kill.
    """
    psutil.process_iter.cache_clear()  # a number may be another process's by now
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
    """Whether a process has not ended; one that nobody has reaped yet has."""
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
    """What a process was started with. While it is entering a program the kernel shows none: waits for the program."""
    end = time.monotonic() + _ENTER_S
    while not process.environ() and _enters(process) and time.monotonic() < end:
        time.sleep(0.002)
    environment: dict[str, str] = process.environ()
    return environment


def _enters(process: psutil.Process) -> bool:
    """Whether it has memory, as no thread of the kernel has, and no arguments yet, which come with its environment."""
    return bool(process.memory_info().vms and not process.cmdline())


def post_mortem(returncode: int | None, *, log: Path, kernel_killed: bool) -> CellResult:
    """What became of a worker that ended without its last word."""
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
        return f"signal {number}"  # a realtime one


def kernel_kills() -> int:
    """How often the kernel has killed for want of memory, in this cgroup where there is one."""
    return next((kills for path in _KILL_COUNTS if (kills := kills_in(path)) is not None), 0)


def kills_in(path: Path) -> int | None:
    """The kills for want of memory that a file of the kernel counts; None where it counts none."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
