"""The control group of this process: its folder, its CPU quota, and creation of groups below it.

Sources: the kernel's cgroup-v1/memory.rst, cgroup-v2.rst and sched-bwc.rst; systemd's CGROUP_DELEGATION.md and
org.freedesktop.systemd1(5).
"""

import errno
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

PREFIX = "embedding-suite-"
"""Prefix of the names of our groups; the PID of the process that made the group follows."""
_LEAF = f"{PREFIX}main"
"""Child group for a group's own processes, version 2: a group may have processes or child groups, not both."""
_ATTEMPTS = 5
_PAUSE_S = 0.01
_POLL_S = 0.25
_BUS_TIMEOUT_S = 20.0
_DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes that systemd sets on the folder of a delegated group."""
REMEDY_1 = (
    "run as root, in a container of `docker run --privileged ...`, or make a group for yourself first: "
    "`sudo mkdir {0}/mine && sudo chown -R $USER {0}/mine && echo $$ | sudo tee {0}/mine/cgroup.procs`"
)
REMEDY_2 = (
    "use `systemd-run --user --scope -p Delegate=yes python run_bench.py ...` under systemd, "
    "`docker run --privileged --cgroupns=private ...` for a container"
)


class CgroupUnavailable(RuntimeError):
    """The memory of this process cannot be limited.

    Args:
        why: The reason.
        remedy: The remedy: a permission, or a command to run first.
    """

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why
        self.remedy = remedy


@contextmanager
def refusals_told(path: Path, remedy: str) -> Iterator[None]:
    """Convert an `OSError` of the kernel below the group `path` to `CgroupUnavailable`."""
    try:
        yield
    except OSError as error:
        raise CgroupUnavailable(
            f"no memory control group can be made below {path} ({error.strerror})", remedy
        ) from None


def own_group(root: Path) -> tuple[int, Path]:
    """Version and folder of the group that counts this process's memory; in a container the topmost visible one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        raise CgroupUnavailable("control groups are a thing of Linux", "run there") from None
    below = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    memory = next((path for names, path in below.items() if "memory" in names.split(",")), None)
    version, path = (2, below.get("", "/")) if memory is None else (1, memory)
    for mount in mounts:
        top, point, (kind, _, options) = mount[3], mount[4], mount[mount.index("-") + 1 :][:3]
        if kind == ("cgroup2" if version == 2 else "cgroup") and (version == 2 or "memory" in options.split(",")):
            folder = root / point.lstrip("/")
            own = folder / path.removeprefix(top).lstrip("/")
            return version, own if own.is_dir() else folder
    raise CgroupUnavailable(
        "no control group that counts memory can be seen (no such mount in /proc/self/mountinfo)",
        "mount it: `sudo mount -t cgroup2 none /sys/fs/cgroup`, for a container `docker run --privileged ...`",
    )


def granted_cpus(root: Path = Path("/")) -> float:
    """Number of CPUs under the tightest quota on this process; infinite if there is none.

    In a container the path that `/proc/self/cgroup` names may be the host's; its own group is the topmost one.

    Raises:
        OSError: the groups of this process cannot be read.
    """
    granted = math.inf
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        names: tuple[str, ...]
        if not controllers:  # version 2
            mount, names = "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            mount, names = "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            with suppress(OSError):  # a group above the visible ones, or the topmost, which has no limit
                quota, period = " ".join((root / mount / group / name).read_text() for name in names).split()
                if quota not in {"max", "-1"}:
                    granted = min(granted, int(quota) / int(period))
    return granted


def made_counting(base: Path) -> tuple[Path, Path]:
    """Create a group of version 2 below `base`. Returns its folder, and the group to which this process returns.

    Raises:
        CgroupUnavailable: it cannot be made.
    """
    with refusals_told(base, REMEDY_2):
        if "memory" not in (base / "cgroup.controllers").read_text().split():
            raise CgroupUnavailable(f"memory is not counted in {base}: its cgroup.controllers lack it", REMEDY_2)
        if "memory" not in (base / "cgroup.subtree_control").read_text().split():
            _count_below(base)
        leaf = base / _LEAF
        return made(base), leaf if leaf.exists() else base


def _count_below(base: Path) -> None:
    """Enable the memory controller for child groups; except the root, only a group without processes may do that."""
    for attempt in range(_ATTEMPTS):
        if (base / "cgroup.events").exists():  # not the root group
            (base / _LEAF).mkdir(exist_ok=True)
            for pid in (base / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (base / _LEAF / "cgroup.procs").write_text(pid)
        try:
            (base / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:  # a process was started meanwhile
            if error.errno != errno.EBUSY or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def made(base: Path) -> Path:
    """Create a group below `base`, named after this process."""
    path = base / f"{PREFIX}{os.getpid()}"
    with suppress(FileNotFoundError):  # left by an earlier process with this PID
        path.rmdir()
    path.mkdir()
    return path


def parent_of_new(own: Path) -> Path:
    """Group below which new groups for processes of `own` are created."""
    return own.parent if own.name == _LEAF else own


def is_ours(own: Path) -> bool:
    """Whether systemd has delegated this group to its processes."""
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(parent_of_new(own), name) == b"1":
                return True
    return False


def in_scope(root: Path) -> Path:
    """Make systemd, which owns the groups of users and of root, move this process to a new, delegated scope.

    The process cannot return to its previous scope. systemd removes the new one, and groups below, once it is empty.

    Returns:
        The folder of the scope's group.

    Raises:
        CgroupUnavailable: systemd refuses it, or counts no memory there.
    """
    unit = f"{PREFIX}{os.getpid()}.scope"
    properties = (
        f"PIDs au 1 {os.getpid()} Delegate b true MemoryAccounting b true "
        "CollectMode s inactive-or-failed"  # so that no killed one stays listed
    )
    _ask_systemd("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", "4", *properties.split(), "0")
    deadline = time.monotonic() + _BUS_TIMEOUT_S
    while True:  # systemd has only queued the job when it answers
        _, own = own_group(root)
        with suppress(FileNotFoundError):
            if own.name == unit and "memory" in (own / "cgroup.controllers").read_text().split():
                return own
        if time.monotonic() > deadline:
            raise CgroupUnavailable(
                f"systemd counts no memory for {own.name}",
                "let it: `sudo systemctl set-property user@$UID.service Delegate=yes`, then log in anew",
            )
        time.sleep(_POLL_S)


def _ask_systemd(method: str, *arguments: str) -> None:
    """Call systemd: the user's instance, or the system's for root."""
    service = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    busctl = shutil.which("busctl")
    if busctl is None:
        raise CgroupUnavailable("systemd owns the control groups here and `busctl`, to ask it, is missing", REMEDY_2)
    command = [busctl, "--system" if os.geteuid() == 0 else "--user", "--quiet", "call", *service, method, *arguments]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_BUS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        said = "no answer"
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or f"exit code {error.returncode}"
    else:
        return
    raise CgroupUnavailable(f"systemd owns the control groups here and refuses {method} ({said})", REMEDY_2)
