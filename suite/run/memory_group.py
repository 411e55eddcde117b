"""Linux memory control groups, which limit the bytes of a process, its page cache included.

A page counts in the group of the process that touched it first, and stays there: pages from before a process entered do
not count, nor do pages of files that other processes have brought into the page cache.

Sources: the kernel's cgroup-v1/memory.rst and cgroup-v2.rst.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import ClassVar

from suite.run.control_groups import (
    PREFIX,
    REMEDY_1,
    REMEDY_2,
    CgroupUnavailable,
    in_scope,
    is_ours,
    made,
    made_counting,
    own_group,
    parent_of_new,
    refusals_told,
)
from suite.run.kill import kills_in, runs

_PATIENCE_S = 30.0
"""Seconds to wait for dirty pages to be written to the drive before they can be reclaimed."""
_POLL_S = 0.25


class MemoryGroup(AbstractContextManager["MemoryGroup"]):
    """A group for this process and the processes it starts after `enter`; leaving the context closes it.

    Attributes:
        how: Kind of the group, as text for the record.
    """

    how: str
    _usage: ClassVar[str]
    _peak: ClassVar[str]
    _remedy: ClassVar[str]
    _cached: ClassVar[tuple[str, str]]
    """Entries of `memory.stat`: page cache with files in memory (tmpfs), and those files alone."""

    def __init__(self, path: Path, home: Path) -> None:
        self._path = path
        self._home = home
        self._peak_file: int | None = None

    @staticmethod
    def make(*, root: Path = Path("/")) -> "MemoryGroup":
        """Create an empty group below this process's own; if systemd owns that, the process moves to a new scope first.

        Args:
            root: Folder of `proc` and `sys`.

        Raises:
            CgroupUnavailable: no group can be created here.
        """
        version, own = own_group(root)
        if version == 1:
            with refusals_told(own, REMEDY_1.format(own)):
                return _Version1(made(own), home=own)
        through_systemd = (root / "run/systemd/system").is_dir() and not is_ours(own)
        group = _Version2(*made_counting(parent_of_new(in_scope(root) if through_systemd else own)))
        group.how += ", through systemd" if through_systemd else ""
        return group

    def enter(self) -> None:
        """Move this process into the group; processes that it starts later are in it too.

        Raises:
            CgroupUnavailable: the kernel refuses it.
        """
        try:
            self._write("cgroup.procs", os.getpid())
        except OSError as error:
            raise CgroupUnavailable(
                f"this process cannot enter {self._path} ({error.strerror})", self._remedy.format(self._home)
            ) from None

    def limit(self, limit_bytes: int) -> None:
        """Limit the group's memory, page cache included and without swap; waits for dirty pages to be written.

        Raises:
            CgroupUnavailable: more memory is in use and cannot be reclaimed, or the kernel refuses the limit.
        """
        with refusals_told(self._path, self._remedy.format(self._home)):
            try:
                self._hold(limit_bytes)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                used, limit = (f"{size / 1e6:,.0f} MB" for size in (self.usage_bytes, limit_bytes))
                why = f"{used} are in use and cannot go, the limit is {limit}"
                raise CgroupUnavailable(why, "give a larger --host-budget") from None

    def _hold(self, limit_bytes: int) -> None:
        raise NotImplementedError

    @property
    def usage_bytes(self) -> int:
        """Bytes in use now."""
        return int(self._read(self._usage))

    @property
    def file_bytes(self) -> int:
        """Bytes of page cache of files on drives, part of `usage_bytes`; the kernel's figure may be two seconds old."""
        counts = dict(line.split() for line in self._read("memory.stat").splitlines())
        cached, in_memory = (int(counts.get(name, 0)) for name in self._cached)
        return cached - in_memory

    @property
    def peak_bytes(self) -> int | None:
        """Peak bytes in use, since `reset_peak` if the kernel supports it. None: the kernel does not report a peak."""
        try:
            if self._peak_file is not None:
                return int(os.pread(self._peak_file, 64, 0))
            return int(self._read(self._peak))
        except FileNotFoundError:  # version 2 before Linux 5.19
            return None

    def reset_peak(self) -> None:
        """Reset the peak, if the kernel supports it: with version 2, from Linux 6.12 on."""
        with suppress(OSError):
            if self._peak_file is None:
                self._peak_file = os.open(self._path / self._peak, os.O_RDWR)
            os.write(self._peak_file, b"0")  # version 2 resets the peak for this descriptor only

    def close(self) -> None:
        """Leave the group and remove it. If other processes are in it, it stays, for `remove_left`."""
        if self._peak_file is not None:
            os.close(self._peak_file)
            self._peak_file = None
        with suppress(OSError):
            (self._home / "cgroup.procs").write_text(str(os.getpid()))
            self._path.rmdir()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, name: str) -> str:
        return (self._path / name).read_text()

    def _write(self, name: str, value: int | str) -> None:
        (self._path / name).write_text(str(value))


class _Version1(MemoryGroup):
    how = "memory control group, version 1"
    _usage = "memory.usage_in_bytes"
    _peak = "memory.max_usage_in_bytes"
    _remedy = REMEDY_1
    _cached = ("total_cache", "total_shmem")

    def _hold(self, limit_bytes: int) -> None:
        with_swap = "memory.memsw.limit_in_bytes"
        counts_swap = (self._path / with_swap).exists()
        if counts_swap:
            self._write(with_swap, -1)  # it may never be the smaller one
        _patiently(lambda: self._write("memory.limit_in_bytes", limit_bytes))
        if counts_swap:
            _patiently(lambda: self._write(with_swap, limit_bytes))


class _Version2(MemoryGroup):
    how = "memory control group, version 2"
    _usage = "memory.current"
    _peak = "memory.peak"
    _remedy = REMEDY_2
    _cached = ("file", "shmem")

    def _hold(self, limit_bytes: int) -> None:
        def make_room() -> None:
            self._write("memory.high", limit_bytes)
            if self.usage_bytes > limit_bytes:
                raise OSError(errno.EBUSY, "pages have to be written first")

        if (self._path / "memory.swap.max").exists():
            self._write("memory.swap.max", 0)
        # a `memory.max` below the usage would kill the process; `memory.high` only reclaims pages
        try:
            _patiently(make_room)
            self._write("memory.max", limit_bytes)
        finally:
            self._write("memory.high", "max")


def kills(pid: int, *, root: Path = Path("/")) -> int:
    """Number of out-of-memory kills in the group that process `pid` made; 0 without a group.

    Kills in a group of version 1 are not counted in its ancestors. A scope of systemd no longer exists by then.
    """
    try:
        version, own = own_group(root)
    except CgroupUnavailable:
        return 0
    counted_in = "memory.oom_control" if version == 1 else "memory.events"
    return kills_in(parent_of_new(own) / f"{PREFIX}{pid}" / counted_in) or 0


def remove_of(pid: int) -> None:
    """Remove the group of the killed process `pid`; only that one, as kills of others may be read at this moment."""
    with suppress(CgroupUnavailable, OSError):
        (parent_of_new(own_group(Path("/"))[1]) / f"{PREFIX}{pid}").rmdir()


def remove_left(*, root: Path = Path("/")) -> list[str]:
    """Remove groups below this process's own that killed processes left behind. Returns their names."""
    try:
        _, own = own_group(root)
    except CgroupUnavailable:
        return []
    removed = []
    for path in sorted(parent_of_new(own).glob(f"{PREFIX}*")):
        maker = path.name.removeprefix(PREFIX)
        if not maker.isdigit() or runs(int(maker)):  # its maker may not have entered it yet
            continue
        with suppress(OSError):  # children of the process may still be in it
            path.rmdir()
            removed.append(path.name)
    return removed


def _patiently(write: Callable[[], None]) -> None:
    """Repeat a write while the kernel returns EBUSY, for at most `_PATIENCE_S`."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)
