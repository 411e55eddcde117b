"""What a cell says while it runs: which phase goes on, how far it is, and how long each phase took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from suite.run.messages import Done, Outcome, Progress, Turn, encode

_BEAT_S = 0.25


class Reporter:
    """Sends progress to the parent process, at most four times a second while a phase lasts."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._phase = "start"
        self._last = 0.0

    @property
    def address(self) -> Path:
        """Where another process of this machine opens the same pipe."""
        return Path(f"/proc/{os.getpid()}/fd/{self._pipe.fileno()}")

    def phase(self, name: str) -> None:
        """A new phase begins."""
        self._phase = name
        self.send(Progress(phase=name))

    def beat(self, step: int = 0, steps: int = 0) -> None:
        """The phase goes on."""
        if time.monotonic() - self._last >= _BEAT_S:
            self.send(Progress(phase=self._phase, step=step, steps=steps))

    def send(self, message: Progress | Done | Turn | Outcome) -> None:
        """Say it at once."""
        self._last = time.monotonic()
        self._pipe.write(encode(message))
        self._pipe.flush()


class Phases:
    """Announces phases and keeps how long each took.

    Attributes:
        beat: The reporter's: shows that the phase in hand goes on.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.beat = reporter.beat
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Announce a phase; it lasts as long as the block."""
        self._reporter.phase(name)
        start = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - start

    def seconds(self, name: str) -> float:
        """Duration of a phase; 0 for one that did not take place."""
        return self._seconds.get(name, 0.0)

    @property
    def total_s(self) -> float:
        """Since the first phase."""
        return time.perf_counter() - self._start
