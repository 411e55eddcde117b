"""Memory probes: peak resident set after a reset, and what torch's allocator and the driver say of a CUDA device."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from suite.records.environment import ask_nvml
from suite.run.control_groups import CgroupUnavailable, own_group

if TYPE_CHECKING:  # the parent process reads host figures without paying for torch
    import torch

_CLEAR_REFS = Path("/proc/self/clear_refs")
_CACHE_OF_1 = ("total_active_file", "total_inactive_file")
_CGROUPS = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", _CACHE_OF_1),
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
}
"""By version: files with the limit and the use of a control group, and which entries of memory.stat are file cache."""


def reset_peaks(device: "torch.device") -> bool:
    """Start measuring peaks anew. Returns whether the host's peak could be reset (it needs a writable clear_refs)."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        _CLEAR_REFS.write_text("5")  # the peak alone
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Peak resident set since the last reset (VmHWM), shared pages counted in full."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return rss_bytes()


def rss_bytes() -> int:
    """Resident set now."""
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
    """Bytes that this process has read from and written to drives so far; zeros where the kernel does not say."""
    try:
        used = psutil.Process().io_counters()
    except (psutil.AccessDenied, AttributeError):
        return 0, 0
    return used.read_bytes, used.write_bytes


def pss_bytes() -> int | None:
    """Proportional set size now: shared pages divided by their users. None where the kernel does not say."""
    try:
        return int(psutil.Process().memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return None


def device_peak(device: "torch.device") -> dict[str, int | None]:
    """Peaks of torch's caching allocator since the last reset, and what this process has of the device now.

    By the names that `Memory` has for them; nothing on a CPU.

    fbgemm's UVM tensors bypass that allocator although they call themselves cuda tensors; the driver's figure holds
    the CUDA context and, of those tensors, device-resident pages only. It is None where NVML does not say, as in many
    containers, whose processes have other numbers outside; what is in use of the whole device would not be this
    process's own.
    """
    if device.type != "cuda":
        return {}
    import torch

    return {
        "device_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "device_reserved_bytes": torch.cuda.max_memory_reserved(device),
        "device_used_bytes": ask_nvml(_used_by_this_process),
    }


def _used_by_this_process(nvml: Any, gpu: Any) -> int | None:  # noqa: ANN401 - a module and an opaque handle
    held = {found.pid: found.usedGpuMemory for found in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    return held.get(os.getpid())  # the driver may list a process without saying what it uses


def available_host_bytes(root: Path = Path("/")) -> int:
    """Host memory this process may still take: the kernel's estimate, or less under a limit of its control groups."""
    available = int(psutil.virtual_memory().available)
    try:
        version, own = own_group(root)
    except CgroupUnavailable:  # no group that counts memory can be seen
        return available
    limit_name, used_name, file_counts = _CGROUPS[version]
    for group in (own, *own.parents):
        try:
            limit, used = (group / limit_name).read_text().strip(), int((group / used_name).read_text())
            counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        if limit.isdigit():
            # file cache counts as used although the kernel gives it back: after reading a dataset it fills the limit
            used -= sum(int(counts.get(name, 0)) for name in file_counts)
            available = min(available, max(0, int(limit) - used))
    return available
