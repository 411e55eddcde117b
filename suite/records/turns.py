"""The times of a system from a contest with others, what was read and written, and the machine around it."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from suite.records.base import AtLeastOne, Model, Place, refuse

_Second = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Times = Annotated[tuple[Annotated[tuple[_Second, ...], Field(min_length=1)], ...], Field(min_length=1)]
"""Seconds of every turn, by build."""


class DriveTraffic(Model):
    """What a process read from and wrote to drives in some steps; reads that the page cache answers do not count."""

    steps: AtLeastOne
    read_bytes: int
    written_bytes: int
    rows_read: int | None = None
    """Rows that the system asked its file for; None: it does not know."""


class Turns(Model):
    """A system's times from a contest: systems train the same batches in turns, a few steps each."""

    contest: str
    """Equal for the systems that took turns with each other."""
    way: Literal["one process", "own process", "two by two", "alone"]
    """Where it was: with all others, in a process of its own beside theirs, with the baseline alone, or by itself."""
    steps: AtLeastOne
    """Of every turn."""
    system_s: Times
    """Seconds of every turn, by build; one device synchronisation at each end of a turn."""
    baseline: str | None = None
    baseline_s: Times | None = None
    """The baseline's in the same turns; of the baseline itself: those of its second copy."""
    losses: Literal["equal", "not compared"] = "not compared"
    """With the baseline's at the end of every turn, bit for bit."""
    data_wait_s: float = 0.0
    """Of all turns together, spent waiting for a batch."""
    embedding_s: Times | None = None
    """Seconds of further turns of as many steps without the MLPs; None: there were none."""
    baseline_embedding_s: Times | None = None
    drive: DriveTraffic | None = None
    """In the turns of `system_s`; None: no rows are on a drive."""
    embedding_drive: DriveTraffic | None = None
    """In the turns of `embedding_s`."""

    @model_validator(mode="after")
    def _are_pairs(self) -> Self:
        refuse("Turns", self._contradictions())
        return self

    def _contradictions(self) -> Iterator[tuple[Place, str]]:
        if (self.baseline_s is None) != (self.baseline is None):
            yield ("baseline",), f"found {self.baseline!r}, which does not go with baseline_s"
        for name, other in (("system_s", "baseline_s"), ("embedding_s", "baseline_embedding_s")):
            times, beside = getattr(self, name), getattr(self, other)
            if beside is not None and (times is None or list(map(len, beside)) != list(map(len, times))):
                yield (other,), f"has other builds or turns than {name}: both are of the same turns"


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
