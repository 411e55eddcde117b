"""What else the machine did while systems took turns: load, clocks, temperature, throttling, and other processes."""

from __future__ import annotations

from suite.records.model import Model


class MachineState(Model):
    """The machine just before the turns, or just after them. None: the machine does not say."""

    load: float | None = None
    """Processes that computed or waited for a disk, on average over the last minute. The run itself counts too."""
    cpu_mhz: float | None = None
    """Mean clock of the CPUs."""
    cpu_celsius: float | None = None
    """Of the hottest sensor on the CPU."""
    cpu_throttled: int | None = None
    """How often heat has slowed down a core since the machine started, over all cores."""
    gpu_mhz: int | None = None
    """Clock of the GPU's processors."""
    gpu_celsius: int | None = None
    gpu_throttle_reasons: int | None = None
    """Why the GPU's clock is held back, as the bits of NVML's `nvmlClocksThrottleReason...`."""
    gpu_throttled_s: float | None = None
    """For how long heat has held back the GPU's clock since the driver was loaded."""
    gpu_processes: int | None = None
    """Processes of others that have the GPU."""


class Conditions(Model):
    """The machine around the turns."""

    start: MachineState
    end: MachineState
    others_cpu_share: float | None = None
    """Of the CPUs that the run may use, the share of time from start to end that other processes took. None: a system
    failed, so our own time is not known, or the machine does not say."""
    stolen_cpu_share: float | None = None
    """Share of that time that a hypervisor gave to other guests."""
