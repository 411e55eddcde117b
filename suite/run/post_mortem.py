"""What became of a worker that ended without its last word."""

from __future__ import annotations

import signal
from pathlib import Path

from suite.records.status import Status
from suite.run.messages import Outcome

_KILL_COUNTS = tuple(
    map(Path, ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"))
)
"""Where the kernel counts its kills for want of memory: cgroup v2, cgroup v1, the whole machine."""


def post_mortem(returncode: int | None, *, log: Path, kernel_killed: bool) -> Outcome:
    """What became of a worker that ended without its last word."""
    last = _last_line(log)
    said = f"; its last line: {last}" if last else ""
    if returncode == -signal.SIGKILL and kernel_killed:
        return Outcome(status=Status.OOM_HOST, reason="the kernel killed the worker for want of memory")
    if returncode == -signal.SIGKILL:
        reason = "the worker was killed from outside (SIGKILL): by a person, a job scheduler or for want of memory"
        return Outcome(status=Status.CRASHED, reason=reason + said)
    if returncode is not None and returncode < 0:
        return Outcome(status=Status.CRASHED, reason=f"the worker died of {_signal_name(-returncode)}{said}")
    return Outcome(status=Status.CRASHED, reason=f"the worker ended with exit code {returncode} and no result{said}")


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a realtime one


def kernel_kills() -> int:
    """How often the kernel has killed for want of memory, in this cgroup where there is one."""
    for path in _KILL_COUNTS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
