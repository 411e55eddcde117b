"""What computes on a machine for a few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from suite.doctor.finding import Unsaid

_STAT = Path("/proc/stat")
_TOP = 3


@dataclass(frozen=True)
class Busy:
    """A process that computed, and CPU seconds that it took meanwhile."""

    name: str
    pid: int
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Who computed while nothing was measured.

    Attributes:
        wall_s: How long was watched.
        cpus: Logical CPUs that were watched: those that this process may use.
        others_s: CPU seconds of all but this process and its parents.
        stolen_s: Seconds that a hypervisor gave to other guests. None: the kernel does not count them.
        top: The processes that took most, at most three.
    """

    wall_s: float
    cpus: int
    others_s: float
    stolen_s: float | None
    top: tuple[Busy, ...]


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot, over some CPUs."""

    busy_s: float
    stolen_s: float


Process = tuple[str, float]
"""Name and CPU seconds since its start."""


def watch(
    seconds: float,
    *,
    stat: Path = _STAT,
    processes: Callable[[], dict[tuple[int, float], Process]] | None = None,
    family: Callable[[], set[int]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Sample:
    """Watch for so many seconds.

    All CPU time but that of this process and its parents is others': processes that began and ended meanwhile, and
    those of other containers, have no name here but are counted. That needs the kernel's counts by CPU; where it
    keeps none, as on macOS, the visible processes are summed.

    Args:
        seconds: How long.
        stat: The kernel's counts.
        processes: CPU seconds so far by process id and start time.
        family: Process ids that are not others.
        sleep: Waits.
        clock: Seconds that only grow.

    Raises:
        Unsaid: no process can be seen.
    """
    processes, family = processes or running, family or own_family
    cpus = _own_cpus()
    before, times_before, start = processes(), _times(stat, cpus), clock()
    sleep(seconds)
    after, times_after, wall_s = processes(), _times(stat, cpus), max(clock() - start, 1e-9)
    if not after:
        raise Unsaid("no process can be seen")
    took = [
        Busy(name, key[0], cpu_s - (before[key][1] if key in before else 0.0)) for key, (name, cpu_s) in after.items()
    ]
    mine = family()
    others = sorted((busy for busy in took if busy.pid not in mine), key=lambda busy: -busy.cpu_s)
    others_s = sum(busy.cpu_s for busy in others)
    stolen_s = None
    if times_before is not None and times_after is not None:
        own_s = sum(busy.cpu_s for busy in took if busy.pid in mine)
        others_s = max(0.0, times_after.busy_s - times_before.busy_s - own_s)
        stolen_s = times_after.stolen_s - times_before.stolen_s
    top = tuple(busy for busy in others[:_TOP] if busy.cpu_s > 0)
    return Sample(wall_s=wall_s, cpus=len(cpus), others_s=others_s, stolen_s=stolen_s, top=top)


def running() -> dict[tuple[int, float], Process]:
    """CPU seconds of every visible process; those that end meanwhile, or are closed to us, are left out."""
    found = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        times = process.info["cpu_times"]
        if times is not None:
            key = (process.pid, float(process.info["create_time"] or 0.0))
            found[key] = (str(process.info["name"]), float(times.user + times.system))
    return found


def own_family() -> set[int]:
    """This process and those above it: the shell and terminal that it was started from are not the ones to stop."""
    me = psutil.Process()
    try:
        return {me.pid, *(parent.pid for parent in me.parents())}
    except psutil.Error:
        return {me.pid}


def cpu_times(text: str, cpus: Iterable[int]) -> CpuTimes:
    """Seconds of some CPUs, as `/proc/stat` counts them.

    Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal, in ticks; guests are part of user.

    Raises:
        Unsaid: a CPU is not listed, or its line holds less.
    """
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    rows = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    busy = stolen = 0
    for cpu in cpus:
        try:
            user, nice, system, _, _, irq, softirq, steal = map(int, rows[f"cpu{cpu}"][:8])
        except (KeyError, ValueError):
            raise Unsaid(f"/proc/stat says nothing of CPU {cpu}") from None
        busy += user + nice + system + irq + softirq
        stolen += steal
    return CpuTimes(busy_s=busy / ticks_per_s, stolen_s=stolen / ticks_per_s)


def _times(stat: Path, cpus: frozenset[int]) -> CpuTimes | None:
    try:
        return cpu_times(stat.read_text(), cpus)
    except (OSError, Unsaid):
        return None


def _own_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
