"""Checks: the GPU, its link and who else uses it."""

import os
import shutil
import sysconfig
from pathlib import Path

from suite.doctor.finding import Finding, Unsaid, ok, problem, warning
from suite.doctor.machine import Gpu, Machine

_SM_CLOCK = 1
_HELD_BACK = {
    0x4: "power limit",
    0x8: "slowdown by the hardware (heat, power brake or supply)",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "power brake from outside",
}
"""Reasons for a lower clock: `nvmlClocksEventReason...` of NVIDIA's nvml.h."""
_USED_BYTES, _USED_SHARE = 1 << 30, 0.02
"""The driver itself keeps some hundred MiB, more on larger devices."""


def device(machine: Machine) -> Finding:
    """Whether there is a device, and torch can use it."""
    if machine.gpu is None:
        return ok("no NVIDIA device is visible", "CPU figures only: they tell nothing of offload from a GPU.")
    name, torch = str(machine.gpu.ask("nvmlDeviceGetName")), machine.imports
    if torch.error or torch.sees_gpu:
        return ok(name)
    if not torch.cuda:
        return problem(f"{name}, but torch is a CPU build", "Install the CUDA builds: `make setup BUILD=cuda`.")
    return problem(
        f"{name}, which torch does not see: it is built for CUDA {torch.cuda}",
        "If `nvidia-smi` shows a lower CUDA version, update the driver or install a torch for an older CUDA.",
    )


def link(gpu: Gpu) -> Finding:
    """Width and generation of the PCIe link that rows are moved over."""
    names = ("CurrPcieLinkWidth", "MaxPcieLinkWidth", "MaxPcieLinkGeneration")
    width, widest, generation = (int(gpu.ask(f"nvmlDeviceGet{name}")) for name in names)
    if min(width, widest) <= 0:
        raise Unsaid("the driver names no width of the link: virtual machines may hide the bus")
    seen = f"PCIe generation {generation}, width {width} of {widest}"
    if width == widest:
        return ok(seen)
    return problem(
        f"{seen}: rows move at {width / widest:.0%} of the speed",
        "Seat the card anew, use a slot that is wired in full, look for a riser or a switch that shares lanes.",
    )


def in_use(gpu: Gpu) -> Finding:
    """Who else computes on the device, and how much of its memory is taken before anything runs."""
    pids = [process.pid for process in gpu.ask("nvmlDeviceGetComputeRunningProcesses") if process.pid != os.getpid()]
    state = gpu.ask("nvmlDeviceGetMemoryInfo")
    seen = f"{state.used / 1e9:.1f} of {state.total / 1e9:.1f} GB in use"
    if pids:
        return problem(
            f"{seen}; other processes compute on it: pid {', '.join(map(str, pids))}",
            "Stop them, wait for their end, or choose another device with CUDA_VISIBLE_DEVICES. In a container the "
            "numbers may be the host's.",
        )
    if state.used > max(_USED_BYTES, _USED_SHARE * state.total):
        return warning(
            seen,
            "Something holds memory although no process is listed here, for example a screen or another container: "
            "`nvidia-smi` on the host shows it.",
        )
    return ok(seen)


def compiler(_: Gpu) -> Finding:
    """Whether Triton can build what launches its kernels: it runs a C compiler, which reads Python's headers."""
    named = os.environ.get("CC")
    found = shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")  # Debian's own scheme names another folder
    if found and header.exists():
        return ok(found)
    missing = (
        f"{header} is missing" if found else f"CC names {named}, which is no program" if named else "no C compiler"
    )
    return warning(
        f"{missing}: freq_cache[exchange=device] cannot be built",
        "Install gcc and Python's headers (`apt install gcc python3-dev`), or name another compiler in CC.",
    )


def clocks(gpu: Gpu) -> Finding:
    """What holds the clock back now."""
    reasons = int(gpu.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    now, most = gpu.ask("nvmlDeviceGetClockInfo", _SM_CLOCK), gpu.ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
    seen = f"{now} of {most} MHz"
    held_back = [words for bit, words in _HELD_BACK.items() if reasons & bit]
    if held_back:
        return warning(
            f"{seen}, held back by {', '.join(held_back)}",
            "Let it cool down, look after fans and dust, and at the limit in `nvidia-smi -q -d POWER,TEMPERATURE`.",
        )
    return ok(seen)
