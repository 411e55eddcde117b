"""Displays that write lines: warnings alone, or one line per event for logs."""

from __future__ import annotations

import time
from typing import TextIO

from suite.records.status import Status
from suite.run.console.display import Clock, Display, clock_text, opening_text, outcome_text

PROGRESS_EVERY_S = 10.0
"""Plain output shows at most one progress line in so many seconds: logs are read afterwards."""


class QuietDisplay(Display):
    """Shows warnings only."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def note(self, text: str) -> None:
        """Not shown."""

    def warn(self, text: str) -> None:
        """One line."""
        self._write(f"warning: {text}")

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        # A log that is followed, or the last line before a crash, must not wait in a buffer.
        self._stream.flush()


class PlainDisplay(QuietDisplay):
    """Lines without colour or cursor movement, for logs."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._last_line = clock()

    def note(self, text: str) -> None:
        """One line."""
        self._write(f"note: {text}")

    def _on_run_started(self, done_already: int) -> None:
        self._write(opening_text(self._cells, done_already))

    def _on_cell_started(self) -> None:
        self._write(f"[{self._index}/{self._cells}] {self._label}: started")
        self._last_line = self._clock()

    def _on_progress(self) -> None:
        if self._clock() - self._last_line >= PROGRESS_EVERY_S:
            self._write(f"[{self._index}/{self._cells}] {self._label}: {self._state()} ({self._times()})")
            self._last_line = self._clock()

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None:
        self._write(f"[{self._index}/{self._cells}] {outcome_text(label, status, wall_s=wall_s, summary=summary)}")
        if reason:
            self._write(f"    {' '.join(reason.split())}")

    def _on_turns_started(self) -> None:
        self._write(f"{self._label}: started")
        self._last_line = self._clock()

    def _on_turn(self) -> None:
        if self._clock() - self._last_line >= PROGRESS_EVERY_S:
            self._write(f"{self._label}: {self._turns()}")
            self._last_line = self._clock()

    def _on_turns_finished(self, took_s: float) -> None:
        self._write(f"{self._label}: done in {clock_text(took_s)}; {self._turns()}")

    def _on_run_finished(self, elapsed_s: float) -> None:
        self._write(f"finished in {clock_text(elapsed_s)}")
