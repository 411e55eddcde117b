"""The times of a system, from a contest with others."""

from __future__ import annotations

from typing import Literal

from suite.records.drive import DriveTraffic
from suite.records.model import Model


class Turns(Model):
    """A system's times from a contest: systems train the same batches in turns, a few steps each."""

    contest: str
    """Equal for the systems that took turns with each other."""
    way: Literal["one process", "own process", "two by two", "alone"]
    """Where it was: with all others, in a process of its own beside theirs, with the baseline alone, or by itself."""
    steps: int
    """Of every turn."""
    system_s: tuple[tuple[float, ...], ...]
    """Seconds of every turn, by build; one device synchronisation at each end of a turn."""
    baseline: str | None = None
    baseline_s: tuple[tuple[float, ...], ...] | None = None
    """The baseline's in the same turns; of the baseline itself: those of its second copy."""
    losses: Literal["equal", "not compared"] = "not compared"
    """With the baseline's at the end of every turn, bit for bit."""
    data_wait_s: float = 0.0
    """Of all turns together, spent waiting for a batch."""
    embedding_s: tuple[tuple[float, ...], ...] | None = None
    """Seconds of further turns of as many steps without the MLPs; None: there were none."""
    baseline_embedding_s: tuple[tuple[float, ...], ...] | None = None
    drive: DriveTraffic | None = None
    """In the turns of `system_s`; None: no rows are on a drive."""
    embedding_drive: DriveTraffic | None = None
    """In the turns of `embedding_s`."""
