"""CPUs and memory that this process may use, and memory that it has used, of the host and of a CUDA device.

Sources: the kernel's cgroup-v1/memory.rst, cgroup-v2.rst and sched-bwc.rst.
"""

import math
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import psutil

from suite.records.environment import ask_nvml

if TYPE_CHECKING:  # the parent process reads host figures without importing torch
    import torch

_CLEAR_REFS = Path("/proc/self/clear_refs")
_KERNEL_COUNTS = Path("/proc/vmstat")


class GroupFiles(NamedTuple):
    """Files of a memory control group with figures, and what entries of `memory.stat` with all below it begin with."""

    limit: str
    usage: str
    peak: str
    below: str


GROUP_FILES = {
    1: GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "total_"),
    2: GroupFiles("memory.max", "memory.current", "memory.peak", ""),
}
"""Names of files and fields by version of the control groups."""


class CgroupUnavailable(RuntimeError):
    """The memory of this process cannot be limited; the message has the reason and the remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")


def reset_peaks(device: "torch.device") -> bool:
    """Reset peaks. Returns whether the host's peak could be reset (it needs a writable clear_refs)."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        _CLEAR_REFS.write_text("5")  # resets only the peak
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Peak resident set since the last reset (VmHWM), shared pages counted in full."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def rss_bytes() -> int:
    """Current resident set."""
    return int(psutil.Process().memory_info().rss)


def tree_rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants, shared pages counted once per process."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for member in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += member.memory_info().rss
    return total


def drive_traffic() -> tuple[int, int]:
    """Bytes that this process has read from and written to drives so far; zeros if the kernel does not report them."""
    with suppress(psutil.AccessDenied):
        used = psutil.Process().io_counters()
        return used.read_bytes, used.write_bytes
    return 0, 0


def device_peak(device: "torch.device") -> dict[str, int | None]:
    """Peaks of torch's caching allocator since the last reset, and current device memory of this process.

    Keys are fields of `Memory`; empty on a CPU.

    fbgemm's UVM tensors bypass that allocator although they are cuda tensors; the driver's figure includes the CUDA
    context and only the device-resident pages of those tensors. It is None if NVML does not report it, as in many
    containers, whose processes have other PIDs outside; the usage of the whole device would include other
    processes.
    """
    if device.type != "cuda":
        return {}
    import torch

    return {
        "device_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "device_reserved_bytes": torch.cuda.max_memory_reserved(device),
        "device_used_bytes": ask_nvml(  # the driver may list a process without its usage
            lambda nvml, gpu: {
                found.pid: found.usedGpuMemory for found in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
            }.get(os.getpid())
        ),
    }


def _own_groups(controller: str, root: Path) -> tuple[int, list[Path]]:
    """Version of the control groups that count `controller`, and the visible groups of this process, innermost first.

    In a container the path that `/proc/self/cgroup` names may be the host's; its own group is the topmost one. A kernel
    without control groups has no such file.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    paths = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    version, top = (1, root / "sys/fs/cgroup" / controller) if controller in paths else (2, root / "sys/fs/cgroup")
    own = PurePosixPath(paths.get(controller, paths.get("", "/")).lstrip("/"))
    return version, [group for group in (top / path for path in (own, *own.parents)) if group.is_dir()]


def own_group(root: Path = Path("/")) -> tuple[int, Path]:
    """Version and folder of the group that counts this process's memory; in a container the topmost visible one.

    Raises:
        CgroupUnavailable: there is none.
    """
    version, groups = _own_groups("memory", root)
    if not groups:
        raise CgroupUnavailable(
            "no control group that counts memory can be seen",
            "on Linux mount it: `sudo mount -t cgroup2 none /sys/fs/cgroup`, for a container `docker run --privileged`",
        )
    return version, groups[0]


def page_cache_bytes(group: Path, version: int) -> int:
    """Page cache of files on drives that counts in a group; the kernel's figure may be two seconds old."""
    counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    below = GROUP_FILES[version].below
    return sum(int(counts.get(f"{below}{name}", 0)) for name in ("active_file", "inactive_file"))


def available_host_bytes(root: Path = Path("/")) -> int:
    """Host memory available to this process: the kernel's estimate, or less under a limit of its control groups."""
    available = int(psutil.virtual_memory().available)
    version, groups = _own_groups("memory", root)
    files = GROUP_FILES[version]
    for group in groups:
        with suppress(OSError):  # the topmost group has no limit
            limit, used = (group / files.limit).read_text().strip(), int((group / files.usage).read_text())
            if limit.isdigit():
                # page cache counts as used although it is reclaimable: after reading a dataset it fills the limit
                used -= page_cache_bytes(group, version)
                available = min(available, max(0, int(limit) - used))
    return available


def granted_cpus(root: Path = Path("/")) -> float:
    """Number of CPUs under the tightest quota on this process; infinite if there is none."""
    version, groups = _own_groups("cpu", root)
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
    granted = math.inf
    for group in groups:
        with suppress(OSError):  # the topmost group has no limit
            quota, period = " ".join((group / name).read_text() for name in names).split()
            if quota not in {"max", "-1"}:
                granted = min(granted, int(quota) / int(period))
    return granted


def kernel_kills() -> int:
    """Number of the kernel's out-of-memory kills on this machine, in control groups or not; 0 if it counts none."""
    with suppress(OSError):
        for line in _KERNEL_COUNTS.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def runs(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
