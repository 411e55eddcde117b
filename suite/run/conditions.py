"""Monitor of the machine during alternating timing."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from suite.records.environment import ask_nvml
from suite.records.measured import Conditions, MachineState

_OTHERS_SHARE = 0.05
_STOLEN_SHARE = 0.01
_THROTTLED_SHARE = 0.01
"""Thresholds of interference, chosen by judgement; `suite.doctor` warns at the same ones."""
_THROTTLE_COUNTS = "devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"


class MachineMonitor:
    """Monitors the machine from its construction on; with `cuda` the GPU too."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._state = _machine_state(cuda=cuda)
        self._start = time.monotonic()
        self._before = _cpu_times()

    @property
    def wall_s(self) -> float:
        """Seconds since construction."""
        return time.monotonic() - self._start

    def conditions(self) -> Conditions:
        """Conditions since construction."""
        passed = (after - before for after, before in zip(_cpu_times(), self._before, strict=True))
        available_s, busy_s, stolen_s, own_s = passed
        return Conditions(
            start=self._state,
            end=_machine_state(cuda=self._cuda),
            others_cpu_share=min(1.0, max(0.0, busy_s - own_s) / available_s),
            stolen_cpu_share=stolen_s / available_s,
        )


def interference(seen: Conditions, *, wall_s: float) -> tuple[str, ...]:
    """Sentences about interference with timings that took `wall_s` seconds; empty if there was none."""
    start, end = seen.start, seen.end
    found = []
    if seen.others_cpu_share is not None and seen.others_cpu_share >= _OTHERS_SHARE:
        load = "" if start.load is None else f" (load {start.load:.1f} at the start)"
        found.append(f"other processes took {seen.others_cpu_share:.0%} of the CPUs while turns were taken{load}")
    if seen.stolen_cpu_share is not None and seen.stolen_cpu_share >= _STOLEN_SHARE:
        found.append(f"the hypervisor gave {seen.stolen_cpu_share:.0%} of the CPU time to other guests")
    slowed = (end.cpu_throttled or 0) - (start.cpu_throttled or 0)
    if slowed > 0:
        found.append(f"heat slowed down CPU cores {slowed} times")
    held_s = (end.gpu_throttled_s or 0.0) - (start.gpu_throttled_s or 0.0)
    if held_s > _THROTTLED_SHARE * wall_s:
        found.append(f"heat held back the GPU's clock for {held_s:.1f} s")
    guests = max(start.gpu_processes or 0, end.gpu_processes or 0)
    if guests:
        found.append(f"{guests} other process{'es' if guests > 1 else ''} had the GPU too")
    return tuple(found)


def _machine_state(*, cuda: bool) -> MachineState:
    """Current load, and how often heat slowed down the CPUs; with `cuda` the same of the GPU, and who else has it."""
    throttled: list[int] = []
    with suppress(OSError, ValueError):
        throttled = [int(path.read_text()) for path in Path("/sys").glob(_THROTTLE_COUNTS)]
    gpu = ask_nvml(_gpu_state) if cuda else None
    return MachineState(load=os.getloadavg()[0], cpu_throttled=sum(throttled) if throttled else None, **(gpu or {}))


def _cpu_times() -> tuple[float, float, float, float]:
    """Seconds so far: available on the CPUs that this process may use, busy, stolen, and its own and its workers'."""
    cpus, rows, own = os.sched_getaffinity(0), psutil.cpu_times(percpu=True), [os.times()]
    for child in psutil.Process().children():  # the forkserver: workers that have ended in any way count with it
        with suppress(psutil.Error):
            own.append(child.cpu_times())
    watched = [rows[cpu] for cpu in cpus] if max(cpus) < len(rows) else rows
    # without interrupts: most belong to the cell's own disk and device
    busy_s = sum(row.user + row.nice + row.system for row in watched)
    stolen_s = sum(getattr(row, "steal", 0.0) for row in watched)
    own_s = sum(one.user + one.system + one.children_user + one.children_system for one in own)
    return time.monotonic() * len(watched), busy_s, stolen_s, own_s


def _gpu_state(nvml: Any, gpu: Any) -> dict[str, Any]:  # noqa: ANN401 - a module and an opaque handle
    """State of the GPU from NVML, without the values that this kind of device does not report."""
    state: dict[str, Any] = {}
    with suppress(nvml.NVMLError):
        held_ns = nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime
        state["gpu_throttled_s"] = held_ns / 1e9
    with suppress(nvml.NVMLError):
        pids = {held.pid for held in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        state["gpu_processes"] = len(pids - {os.getpid()})
    return state
