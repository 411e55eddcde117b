"""What every display of a run keeps count of, whatever it shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from suite.records.status import Status
from suite.run.turns.contest import Standing

Clock = Callable[[], float]
"""Seconds, as `time.monotonic` gives them."""


class Display:
    """Told what happens in a run, in order; a context manager that leaves the terminal as it was.

    By itself it shows nothing. It does the bookkeeping of all displays, so that they state the same remaining time: the
    mean wall time of the cells finished so far, for every cell left, minus what the cell in hand has already taken.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._cells = self._left = self._index = 0
        self._label = self._phase = ""
        self._step = self._steps = 0
        self._steps_per_s: float | None = None
        self._standing: Standing | None = None
        self._walls_s: list[float] = []
        self._run_start = clock()
        self._cell_start: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def run_started(self, cells: int, done_already: int) -> None:
        """A run of `cells` planned cells begins; `done_already` of them have records and are not run again."""
        self._cells, self._left = cells, cells - done_already
        self._run_start = self._clock()
        self._on_run_started(done_already)

    def cell_started(self, index: int, label: str) -> None:
        """The cell at position `index` of all planned ones, counted from 1, begins."""
        self._index, self._label, self._phase = index, label, "start"
        self._step = self._steps = 0
        self._steps_per_s = None
        self._cell_start = self._clock()
        self._on_cell_started()

    def progress(self, phase: str, step: int, *, steps: int, steps_per_s: float | None = None) -> None:
        """The cell in hand has done `step` of `steps` in `phase`; `steps` is 0 where nobody can count them."""
        self._phase, self._step, self._steps, self._steps_per_s = phase, step, steps, steps_per_s
        self._on_progress()

    def cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str = "") -> None:
        """A cell ended; `summary` says what it measured, `reason` why it is not `ok`."""
        self._walls_s.append(wall_s)
        self._left = max(self._left - 1, 0)
        self._cell_start = None
        self._on_cell_finished(label, status, wall_s=wall_s, summary=" ".join(summary.split()), reason=reason)

    def turns_started(self, label: str) -> None:
        """Systems begin to take turns."""
        self._label = label
        self._standing = None
        self._cell_start = self._clock()
        self._on_turns_started()

    def turn(self, standing: Standing) -> None:
        """Whose turn it is now, and how the ratios stand."""
        self._standing = standing
        self._on_turn()

    def turns_finished(self) -> None:
        """All have taken all their turns, or failed."""
        took, self._cell_start = self._clock() - (self._cell_start or self._clock()), None
        self._on_turns_finished(took)
        self._standing = None

    def run_finished(self) -> None:
        """Nothing is left to run."""
        self._on_run_finished(self._clock() - self._run_start)

    @property
    def remaining_s(self) -> float | None:
        """Estimated time to the end of the run, in seconds. None: no cell has finished yet."""
        if not self._walls_s:
            return None
        # Read once: a live display asks from its own thread.
        start = self._cell_start
        in_hand = self._clock() - start if start is not None else 0.0
        mean = sum(self._walls_s) / len(self._walls_s)
        # A cell that takes longer than the mean does not eat into the time of those after it.
        return max(self._left * mean - min(in_hand, mean), 0.0)

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something to act upon; the text says how."""

    def _on_run_started(self, done_already: int) -> None: ...

    def _on_cell_started(self) -> None: ...

    def _on_progress(self) -> None: ...

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None: ...

    def _on_turns_started(self) -> None: ...

    def _on_turn(self) -> None: ...

    def _on_turns_finished(self, took_s: float) -> None: ...

    def _on_run_finished(self, elapsed_s: float) -> None: ...

    def _close(self) -> None: ...

    def _state(self) -> str:
        count = f" {self._step}/{self._steps}" if self._steps else ""
        speed = f", {self._steps_per_s:.1f} steps/s" if self._steps_per_s is not None else ""
        return f"{self._phase}{count}{speed}"

    def _turns(self) -> str:
        """Whose turn it is, and how the ratios stand."""
        if self._standing is None:
            return "start"
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self._standing.ratios.items())
        done, total = self._standing.done, self._standing.total
        turn = f"{done} turns" if done == total else f"{done}/{total} turns, now {self._standing.who}"
        return f"{turn}; relative to the baseline: {ratios}" if ratios else turn

    def _times(self) -> str:
        elapsed = f"elapsed {clock_text(self._clock() - self._run_start)}"
        remaining = self.remaining_s
        return elapsed if remaining is None else f"{elapsed}, about {clock_text(remaining)} left"


def clock_text(seconds: float) -> str:
    """Seconds as `0:07`, `12:05` or `1:40:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def opening_text(cells: int, done_already: int) -> str:
    """How a run begins, as `12 cells, 3 of them done already`."""
    done = f", {done_already} of them done already" if done_already else ""
    return f"{cells} cells{done}"


def outcome_text(label: str, status: Status, *, wall_s: float, summary: str) -> str:
    """How a cell ended, in one line."""
    return f"{label}: {status.value} in {clock_text(wall_s)}" + (f", {summary}" if summary else "")
