"""Questions to the running machine, each with one answer or the reason why there is none."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from suite.doctor.finding import Unsaid


@dataclass(frozen=True)
class Disk:
    """Bytes of a file system."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of this process. None: there is no limit."""

    address_space_bytes: int | None
    locked_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """State of the running Python.

    Attributes:
        optimized: 1 and 2 are `-O` and `-OO`.
        development: `-X dev`, which checks every allocation.
        traced_by: What follows every line or call, as in `pdb` or `coverage`. Empty: nothing.
    """

    debug_build: bool = False
    optimized: int = 0
    development: bool = False
    traced_by: str = ""


def affinity() -> frozenset[int]:
    """CPUs that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        raise Unsaid("this operating system binds no process to CPUs")
    return frozenset(os.sched_getaffinity(0))


def load_average() -> float:
    """Processes that computed or waited for a disk, on average over the last minute."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        raise Unsaid("this operating system keeps no load average") from None


def disk(path: Path) -> Disk:
    """Of the file system that holds a path, or would hold it."""
    there = existing(path)
    try:
        usage = shutil.disk_usage(there)
    except OSError as error:
        raise Unsaid(f"{there} does not tell its free space ({error.strerror})") from None
    return Disk(total_bytes=usage.total, free_bytes=usage.free)


def writable(path: Path) -> bool:
    """Whether a directory can be written, or be made; nothing is."""
    return os.access(existing(path), os.W_OK | os.X_OK)


def existing(path: Path) -> Path:
    """The path itself, or the nearest directory above it that is there."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path(path.anchor))


def limits() -> Limits:
    """Soft limits on memory."""
    try:
        import resource
    except ImportError:
        raise Unsaid("this operating system has no resource limits") from None

    def soft(kind: int) -> int | None:
        limit = resource.getrlimit(kind)[0]
        return None if limit == resource.RLIM_INFINITY else limit

    return Limits(
        address_space_bytes=soft(resource.RLIMIT_AS),
        locked_bytes=soft(resource.RLIMIT_MEMLOCK),
    )


def version(distribution: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def interpreter() -> Interpreter:
    """State of this Python."""
    tracer = sys.gettrace() or sys.getprofile()
    return Interpreter(
        debug_build=hasattr(sys, "gettotalrefcount"),
        optimized=sys.flags.optimize,
        development=sys.flags.dev_mode,
        traced_by=_module_of(tracer) if tracer is not None else _monitor(),
    )


def _module_of(tracer: object) -> str:
    # tracers written in C are objects without a module of their own: their class has one
    return str(getattr(tracer, "__module__", None) or type(tracer).__module__)


def _monitor() -> str:
    """Who uses Python 3.12's way of following code (PEP 669), where six tools have a number each."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return ""
    names = (monitoring.get_tool(number) for number in range(6))
    return next((name for name in names if name), "")
