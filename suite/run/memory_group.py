"""Linux memory control groups, which limit the bytes of a process, its page cache included.

A page counts in the group of the process that touched it first, and stays there: pages from before a process entered do
not count, nor do pages of files that other processes have brought into the page cache.

Sources: the kernel's cgroup-v1/memory.rst and cgroup-v2.rst; systemd's CGROUP_DELEGATION.md.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Self

from suite.run.resources import GROUP_FILES, CgroupUnavailable, own_group, page_cache_bytes, runs

PREFIX = "embedding-suite-"
"""Prefix of the names of our groups; the PID of the process that made the group follows."""
_LEAF = f"{PREFIX}main"
"""Child group for a group's own processes, version 2: a group may have processes or child groups, not both."""
_POLL_S = 0.25
_PATIENCE_S = 30.0
"""Seconds to wait for dirty pages to be written to the drive before they can be reclaimed."""
_EMPTY_S = 0.5
"""Seconds to wait for a group to be without processes, of which one may be started at any time."""
_DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes that systemd sets on the folder of a delegated group."""


_REMEDY = {
    1: "run as root, in a container of `docker run --privileged ...`, or make a group for yourself first: "
    "`sudo mkdir {0}/mine && sudo chown -R $USER {0}/mine && echo $$ | sudo tee {0}/mine/cgroup.procs`",
    2: "use `systemd-run --user --scope -p Delegate=yes python run_bench.py ...` under systemd, "
    "`docker run --privileged --cgroupns=private ...` for a container",
}
"""Remedy where no group can be made, by version of the control groups."""


class MemoryGroup(AbstractContextManager["MemoryGroup"]):
    """A group below this process's own, which holds it within the context, and the processes that it starts there.

    Leaving the context removes it. If other processes are in it, it stays, for `remove_stale_groups`.

    Args:
        root: Folder of `proc` and `sys`.

    Attributes:
        how: Kind of the group, as text for the record.

    Raises:
        CgroupUnavailable: no group can be created here, or the kernel lets nobody in.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._version, own = own_group(root)
        self._files = GROUP_FILES[self._version]
        self._remedy = _REMEDY[self._version]
        self._peak_file: int | None = None
        self.how = f"memory control group, version {self._version}"
        self._home = _home(own)
        """Group to which this process returns."""
        if self._version == 2 and (root / "run/systemd/system").is_dir() and not _is_delegated(self._home):
            raise CgroupUnavailable("systemd owns the control groups here", self._remedy)
        with self._as_unavailable():
            self._path = self._home / f"{PREFIX}{os.getpid()}"
            if self._version == 2:
                self._count_below()
            with suppress(FileNotFoundError):  # left by an earlier process with this PID
                self._path.rmdir()
            self._path.mkdir()
        leaf = self._home / _LEAF
        if self._version == 2 and leaf.exists():
            self._home = leaf

    def __enter__(self) -> Self:
        with self._as_unavailable():
            self._write("cgroup.procs", os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        if self._peak_file is not None:
            os.close(self._peak_file)
        with suppress(OSError):
            (self._home / "cgroup.procs").write_text(str(os.getpid()))
            self._path.rmdir()

    def limit(self, limit_bytes: int) -> None:
        """Limit the group's memory, page cache included and without swap; waits for dirty pages to be written.

        Raises:
            CgroupUnavailable: more memory is in use and cannot be reclaimed, or the kernel refuses the limit.
        """
        with self._as_unavailable():
            try:
                self._limit_1(limit_bytes) if self._version == 1 else self._limit_2(limit_bytes)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                used, limit = (f"{size / 1e6:,.0f} MB" for size in (self.usage_bytes, limit_bytes))
                why = f"{used} are in use and cannot go, the limit is {limit}"
                raise CgroupUnavailable(why, "give a larger --host-budget") from None

    @property
    def usage_bytes(self) -> int:
        """Bytes in use now."""
        return int((self._path / self._files.usage).read_text())

    @property
    def file_bytes(self) -> int:
        """Bytes of page cache of files on drives, part of `usage_bytes`."""
        return page_cache_bytes(self._path, self._version)

    @property
    def peak_bytes(self) -> int | None:
        """Peak bytes in use, since `reset_peak` if the kernel supports it. None: the kernel does not report a peak."""
        try:
            if self._peak_file is not None:
                return int(os.pread(self._peak_file, 64, 0))
            return int((self._path / self._files.peak).read_text())
        except FileNotFoundError:  # version 2 before Linux 5.19
            return None

    def reset_peak(self) -> None:
        """Reset the peak, if the kernel supports it: with version 2, from Linux 6.12 on."""
        with suppress(OSError):
            if self._peak_file is None:
                self._peak_file = os.open(self._path / self._files.peak, os.O_RDWR)
            os.write(self._peak_file, b"0")  # version 2 resets the peak for this descriptor only

    def _limit_1(self, limit_bytes: int) -> None:
        _patiently(lambda: self._write("memory.limit_in_bytes", limit_bytes), _PATIENCE_S)
        if (self._path / "memory.memsw.limit_in_bytes").exists():  # memory with swap: never the smaller limit
            _patiently(lambda: self._write("memory.memsw.limit_in_bytes", limit_bytes), _PATIENCE_S)

    def _limit_2(self, limit_bytes: int) -> None:
        def make_room() -> None:
            self._write("memory.high", limit_bytes)
            if self.usage_bytes > limit_bytes:
                raise OSError(errno.EBUSY, "pages have to be written first")

        if (self._path / "memory.swap.max").exists():
            self._write("memory.swap.max", 0)
        # a `memory.max` below the usage would kill the process; `memory.high` only reclaims pages
        try:
            _patiently(make_room, _PATIENCE_S)
            self._write("memory.max", limit_bytes)
        finally:
            self._write("memory.high", "max")

    def _count_below(self) -> None:
        """Enable the memory controller for child groups; except the root, only a group without processes may do so."""
        base = self._home
        if "memory" not in (base / "cgroup.controllers").read_text().split():
            why = f"memory is not counted in {base}: its cgroup.controllers lack it"
            raise CgroupUnavailable(why, self._remedy)
        if "memory" in (base / "cgroup.subtree_control").read_text().split():
            return

        def count() -> None:
            if (base / "cgroup.events").exists():  # not the root group
                (base / _LEAF).mkdir(exist_ok=True)
                for pid in (base / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        (base / _LEAF / "cgroup.procs").write_text(pid)
            (base / "cgroup.subtree_control").write_text("+memory")

        _patiently(count, _EMPTY_S)

    @contextmanager
    def _as_unavailable(self) -> Iterator[None]:
        """Convert an `OSError` of the kernel to `CgroupUnavailable`."""
        try:
            yield
        except OSError as error:
            why = f"no memory control group can be had below {self._home} ({error.strerror})"
            raise CgroupUnavailable(why, self._remedy.format(self._home)) from None

    def _write(self, name: str, value: int | str) -> None:
        (self._path / name).write_text(str(value))


def group_of(pid: int, *, root: Path = Path("/")) -> Path | None:
    """Folder of the group that process `pid` makes below this process's own; None: groups are not available here."""
    with suppress(CgroupUnavailable):
        return _home(own_group(root)[1]) / f"{PREFIX}{pid}"
    return None


def remove_stale_groups(*, root: Path = Path("/")) -> list[str]:
    """Remove groups below this process's own that killed processes left behind. Returns their names."""
    own = group_of(os.getpid(), root=root)
    removed = []
    for path in [] if own is None else sorted(own.parent.glob(f"{PREFIX}*")):
        maker = path.name.removeprefix(PREFIX)
        if not maker.isdigit() or runs(int(maker)):  # its maker may not have entered it yet
            continue
        with suppress(OSError):  # children of the process may still be in it
            path.rmdir()
            removed.append(path.name)
    return removed


def _home(own: Path) -> Path:
    """Group below which new groups for processes of `own` are created."""
    return own.parent if own.name == _LEAF else own


def _is_delegated(group: Path) -> bool:
    """Whether systemd has delegated a group to its processes."""
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _patiently(write: Callable[[], None], seconds: float) -> None:
    """Repeat a write while the kernel returns EBUSY, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)
