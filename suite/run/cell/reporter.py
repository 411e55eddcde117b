"""Progress reports of a cell: the current phase and step, durations of phases, and notes."""

import os
import time
from pathlib import Path
from typing import BinaryIO

from suite.run.messages import Ack, CellResult, Progress, StepTiming, encode

_BEAT_S = 0.25


class Reporter:
    """Sends progress to the parent process, at most four times a second while a phase lasts.

    Attributes:
        notes: Sentences for the record about changes and failures of the harness.
    """

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._phase = "start"
        self._starts: list[tuple[str, float]] = []
        self._last = 0.0
        self.notes: list[str] = []

    @property
    def address(self) -> Path:
        """Path at which another process of this machine opens the same pipe."""
        return Path(f"/proc/{os.getpid()}/fd/{self._pipe.fileno()}")

    def phase(self, name: str) -> None:
        """Start a new phase, which ends the previous one."""
        self._phase = name
        self._starts.append((name, time.perf_counter()))
        self.send(Progress(phase=name))

    def beat(self, step: int = 0, steps: int = 0) -> None:
        """Send progress within the phase, unless a message was sent less than `_BEAT_S` ago."""
        if time.monotonic() - self._last >= _BEAT_S:
            self.send(Progress(phase=self._phase, step=step, steps=steps))

    def seconds(self, name: str) -> float:
        """Duration of a phase, until now if it is the current one; 0 if it did not take place."""
        ends = [*(start for _, start in self._starts[1:]), time.perf_counter()]
        return sum(end - start for (phase, start), end in zip(self._starts, ends, strict=True) if phase == name)

    @property
    def total_s(self) -> float:
        """Seconds since the start of the first phase."""
        return time.perf_counter() - self._starts[0][1]

    def send(self, message: Progress | Ack | StepTiming | CellResult) -> None:
        """Send a message at once."""
        self._last = time.monotonic()
        self._pipe.write(encode(message))
        self._pipe.flush()
