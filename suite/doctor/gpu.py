"""Checks: the GPU, its link and who else uses it."""

from __future__ import annotations

import os

from suite.doctor.finding import Answer, Unsaid, ok, problem, warning
from suite.doctor.gpu_probe import Gpu, NotOffered, hidden
from suite.doctor.machine import Machine

_ON = 1
_SM_CLOCK = 1
_UNCORRECTED, _SINCE_BOOT = 1, 0
_IDLE = 0x1
_SETTING = 0x2
_HELD_BACK = {
    0x4: "power limit",
    0x8: "slowdown by the hardware (heat, power brake or supply)",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "power brake from outside",
}
"""Reasons for a lower clock. Source: NVIDIA's nvml.h, nvmlClocksEventReason..., as in nvidia-ml-py 13.615.71."""
_USED_BYTES, _USED_SHARE = 1 << 30, 0.02
"""The driver itself keeps some hundred MiB, more on larger devices."""


def device(machine: Machine) -> Answer:
    """Whether there is a device, and torch sees it."""
    gpu = machine.gpu()
    if gpu is None and hidden(machine.environment):
        return ok("CUDA_VISIBLE_DEVICES hides every NVIDIA device", "CPU figures only.")
    if gpu is None:
        return ok("no NVIDIA device", "CPU figures only: they tell nothing of offload from a GPU.")
    torch = machine.imports().get("torch")
    if torch is not None and torch.sees_gpu is False:
        return problem(
            f"{gpu.name}, which torch does not see{' because it is a CPU build' if not torch.built_for else ''}",
            "Install the CUDA builds: `make setup BUILD=cuda`. If they are installed, the driver is too old for them: "
            "compare `nvidia-smi` with torch.version.cuda.",
        )
    return ok(gpu.name)


def pcie_link(machine: Machine) -> Answer:
    """Generation and width of the link that rows are moved over, now and at most."""
    gpu = _gpu(machine)
    width, widest = _link(gpu, "nvmlDeviceGetCurrPcieLinkWidth"), _link(gpu, "nvmlDeviceGetMaxPcieLinkWidth")
    generation = _link(gpu, "nvmlDeviceGetCurrPcieLinkGeneration")
    highest = _link(gpu, "nvmlDeviceGetMaxPcieLinkGeneration")
    seen = f"generation {generation} of {highest}, width {width} of {widest}"
    if width < widest:
        return problem(
            f"{seen}: rows move at {width / widest:.0%} of the speed",
            "Seat the card anew, use a slot that is wired in full, look for a riser or a switch that shares lanes.",
        )
    if generation < highest and not _reasons(gpu) & _IDLE:
        return warning(
            f"{seen}, although the device is not idle",
            "Look for power management of the link in the firmware (ASPM) and for errors in `dmesg` (AER).",
        )
    own = _own_generation(gpu)
    if own is not None and own > highest:
        return warning(
            f"{seen}; the GPU itself could use generation {own}",
            "The slot or the processor is older than the GPU: use another slot, or state the link with the figures.",
        )
    if generation < highest:
        return ok(
            f"{seen}; an idle link is slowed down",
            "See it at work while a cell runs: `nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current "
            "--format=csv -l 1`.",
        )
    return ok(seen)


def gpu_processes(machine: Machine) -> Answer:
    """Who else computes or draws on the device."""
    gpu, me = _gpu(machine), os.getpid()
    computing = [process.pid for process in gpu.ask("nvmlDeviceGetComputeRunningProcesses") if process.pid != me]
    try:
        drawing = [process.pid for process in gpu.ask("nvmlDeviceGetGraphicsRunningProcesses") if process.pid != me]
    except NotOffered:
        drawing = []
    if computing:
        return problem(
            f"other processes compute on it: pid {', '.join(map(str, computing))}",
            "Stop them, wait for their end, or choose another device with CUDA_VISIBLE_DEVICES. In a container the "
            "numbers may be the host's.",
        )
    if drawing:
        return warning(
            f"it draws a screen for pid {', '.join(map(str, drawing))}",
            "Measure on a device without a screen, or end the graphical session.",
        )
    return ok("none but ours")


def gpu_memory(machine: Machine) -> Answer:
    """What is taken of the device's memory before anything runs."""
    state = _gpu(machine).ask("nvmlDeviceGetMemoryInfo")
    seen = f"{state.used / 1e9:.1f} of {state.total / 1e9:.1f} GB in use"
    if state.used <= max(_USED_BYTES, _USED_SHARE * state.total):
        return ok(seen)
    return warning(
        seen,
        "Something holds memory, if no process is listed then in another container or left by one that was killed: "
        "`nvidia-smi` on the host shows it.",
    )


def ecc(machine: Machine) -> Answer:
    """Error correction, which costs some devices bandwidth, and its errors."""
    gpu = _gpu(machine)
    try:
        now, after_restart = gpu.ask("nvmlDeviceGetEccMode")
        errors = int(gpu.ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_BOOT)) if now == _ON else 0
    except NotOffered:
        return ok("this device has none")
    seen = "on" if now == _ON else "off"
    if errors:
        return problem(
            f"{errors} uncorrected errors since the driver was loaded",
            "Answers may be wrong: reset the device, and have it replaced if they return.",
        )
    if now != after_restart:
        return warning(
            f"{seen}, and {'on' if after_restart == _ON else 'off'} after the next restart",
            "Restart before you measure: memory size and bandwidth may change with it.",
        )
    return ok(seen)


def persistence_mode(machine: Machine) -> Answer:
    """Whether the driver stays loaded between cells."""
    try:
        mode = _gpu(machine).ask("nvmlDeviceGetPersistenceMode")
    except NotOffered:
        return ok("this device has none")
    if mode == _ON:
        return ok("on")
    return warning(
        "off: the driver lets go of the device after each cell and sets it up anew for the next",
        "`sudo nvidia-smi -pm 1` until the next boot, or run nvidia-persistenced.",
    )


def gpu_clocks(machine: Machine) -> Answer:
    """What holds the clock back now."""
    gpu = _gpu(machine)
    reasons = _reasons(gpu)
    now, most = gpu.ask("nvmlDeviceGetClockInfo", _SM_CLOCK), gpu.ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
    seen = f"{now} of {most} MHz"
    held_back = [words for bit, words in _HELD_BACK.items() if reasons & bit]
    if held_back:
        return warning(
            f"{seen}, held back by {', '.join(held_back)}",
            "Let it cool down, look after fans and dust, and at the limit in `nvidia-smi -q -d POWER,TEMPERATURE`.",
        )
    if reasons & _SETTING:
        return ok(
            f"{seen}, fixed by a setting",
            "That makes figures repeat; state the clock with them. `nvidia-smi -rac` and `-rgc` undo it.",
        )
    return ok(f"{seen}, idle" if reasons & _IDLE else seen)


def application_clocks(machine: Machine) -> Answer:
    """Clocks that were set for applications, beside the device's defaults."""
    gpu = _gpu(machine)
    try:
        chosen = gpu.ask("nvmlDeviceGetApplicationsClock", _SM_CLOCK)
        default = gpu.ask("nvmlDeviceGetDefaultApplicationsClock", _SM_CLOCK)
    except NotOffered:
        return ok("this device has none")
    if chosen >= default:
        return ok(f"{chosen} MHz")
    return warning(
        f"{chosen} MHz where {default} are the default", "`sudo nvidia-smi -rac`, or state the clock with the figures."
    )


def mig(machine: Machine) -> Answer:
    """Whether the device is divided."""
    try:
        now, after_restart = _gpu(machine).ask("nvmlDeviceGetMigMode")
    except NotOffered:
        return ok("this device has none")
    if now == _ON:
        return warning(
            "on: a process gets a slice of the device, and its neighbours share the link",
            "State the slice with the figures, or have the whole device: `sudo nvidia-smi -mig 0`.",
        )
    if after_restart == _ON:
        return warning("off, and on after the next reset", "`sudo nvidia-smi -mig 0` if nobody waits for it.")
    return ok("off")


def _gpu(machine: Machine) -> Gpu:
    gpu = machine.gpu()
    if gpu is None:
        raise Unsaid("there is no NVIDIA device")
    return gpu


def _link(gpu: Gpu, function: str) -> int:
    value = int(gpu.ask(function))
    if value <= 0:  # virtual machines may hide the bus
        raise Unsaid(f"{function} says {value}, which is no link")
    return value


def _own_generation(gpu: Gpu) -> int | None:
    try:
        return _link(gpu, "nvmlDeviceGetGpuMaxPcieLinkGeneration")
    except Unsaid:  # older drivers
        return None


def _reasons(gpu: Gpu) -> int:
    """Bits that say why the clock is what it is; drivers before 535 know the older name only."""
    try:
        return int(gpu.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except NotOffered:
        raise
    except Unsaid as newer:
        try:
            return int(gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))
        except Unsaid:
            raise newer from None
