"""Displays of a run's progress: lines for logs, a live status in a terminal, JSON for programs, or warnings only."""

import io
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Self, TextIO

from rich.console import Console
from rich.text import Text

from suite.records.command_line import ShownConsole, only_shown, printable
from suite.records.record import Status
from suite.run.worker import Progress

PROGRESS_EVERY_S = 10.0
"""Minimum seconds between progress lines of plain output: logs are read afterwards."""

Clock = Callable[[], float]
"""Returns seconds, as `time.monotonic` does."""


class Display(AbstractContextManager["Display"]):
    """Receives the events of a run in order; a context manager that restores the terminal.

    The base class shows nothing. It estimates the remaining time for all displays: the mean wall time of the cells
    finished so far, for every cell left, minus the time that the current cell has taken.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._cells = self._left = 0
        self._index: int | None = None
        self._label = self._standing = ""
        self._walls_s: list[float] = []
        self._run_start = clock()
        self._start: float | None = None

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401 - whatever belongs to it
        """Show an event: its line, in a style of rich's, or its values."""

    def _show(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401 - as of `_tell`
        """Show an event; the run continues if the output is closed."""
        with only_shown():
            self._tell(event, line, style, **values)

    def run_started(self, cells: int, done_already: int) -> None:
        """A run of `cells` planned cells begins; `done_already` of them have records and are not run again."""
        self._cells, self._left = cells, cells - done_already
        self._run_start = self._clock()
        line = f"{cells} cells" + (f", {done_already} of them done already" if done_already else "")
        self._show("run_started", line, cells=cells, done_already=done_already)

    def cell_started(self, index: int, label: str) -> None:
        """The cell at position `index` of all planned ones, counted from 1, begins."""
        self._index, self._label, self._start = index, label, self._clock()
        self._show("cell_started", f"{self._place}: started", index=index, label=label)

    def turns_started(self, label: str) -> None:
        """The alternating timing of systems begins."""
        self._index, self._label, self._standing, self._start = None, label, "", self._clock()
        self._show("turns_started", f"{label}: started", label=label)

    def progress(self, progress: Progress) -> None:
        """Progress of the current cell, or of the timing: the current system and the ratios so far.

        `steps` is 0 if their number is unknown.
        """
        count = f" {progress.step}/{progress.steps}" if progress.steps else ""
        left = "" if self.remaining_s is None else f", about {clock_text(self.remaining_s)} left"
        elapsed = clock_text(self._clock() - self._run_start)
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in progress.ratios.items())
        self._standing = f"; relative to the baseline: {ratios}" if ratios else ""
        line = f"{self._place}: {progress.phase}{count}{self._standing} (elapsed {elapsed}{left})"
        self._show("progress", line, index=self._index, **progress.model_dump(exclude={"kind"}))

    def cell_finished(self, status: Status, *, wall_s: float, summary: str, reason: str = "") -> None:
        """The current cell ended; `summary` has its main figures, `reason` explains a status other than `ok`."""
        self._walls_s.append(wall_s)
        self._left = max(self._left - 1, 0)
        self._start = None
        found, why = " ".join(summary.split()), " ".join(reason.split())
        line = f"{self._place}: {status} in {clock_text(wall_s)}"
        line += (f", {found}" if found else "") + (f"\n    {why}" if why else "")
        style = "green" if status is Status.OK else "yellow" if status.good else "red"
        ended = {"label": self._label, "status": status, "wall_s": wall_s, "summary": summary, "reason": reason}
        self._show("cell_finished", line, style, index=self._index, **ended, remaining_s=self.remaining_s)

    def turns_finished(self) -> None:
        """The timing has ended: every system has finished its turns, or failed."""
        took_s, self._start = self._clock() - (self._start or self._clock()), None
        line = f"{self._label}: done in {clock_text(took_s)}{self._standing}"
        self._show("turns_finished", line, "green", label=self._label, wall_s=took_s)

    def run_finished(self) -> None:
        """The run has ended."""
        elapsed_s = self._clock() - self._run_start
        self._show("run_finished", f"finished in {clock_text(elapsed_s)}", elapsed_s=elapsed_s)

    def note(self, text: str) -> None:
        """Show information."""
        self._show("note", f"note: {text}", "dim", text=text)

    def warn(self, text: str) -> None:
        """Show a warning; the text names the remedy."""
        self._show("warning", f"warning: {text}", "yellow", text=text)

    @property
    def remaining_s(self) -> float | None:
        """Estimated seconds to the end of the last cell. None: no cell has finished yet, or systems are being timed."""
        if not self._walls_s or self._index is None:
            return None
        in_hand = self._clock() - self._start if self._start is not None else 0.0
        mean = sum(self._walls_s) / len(self._walls_s)
        # A cell that takes longer than the mean does not reduce the estimate for later cells.
        return max(self._left * mean - min(in_hand, mean), 0.0)

    @property
    def _place(self) -> str:
        return self._label if self._index is None else f"[{self._index}/{self._cells}] {self._label}"


def clock_text(seconds: float) -> str:
    """Seconds as `0:12:05`."""
    return str(timedelta(seconds=round(seconds)))


class PlainDisplay(Display):
    """Lines without colour or cursor movement, for logs."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream
        self._last_line = clock()

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401
        if event == "progress" and self._clock() - self._last_line < PROGRESS_EVERY_S:
            return
        self._last_line = self._clock()
        # flushed at once, for readers that follow the log and for the last line before a crash
        print(printable(line), file=self._stream, flush=True)


class JsonDisplay(PlainDisplay):
    """One JSON object per event and line, each with its name under `event` and seconds since the start under `at_s`."""

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401
        found = {"event": event, "at_s": round(self._clock() - self._run_start, 3), **values}
        print(json.dumps(found), file=self._stream, flush=True)


class QuietDisplay(PlainDisplay):
    """Warnings only."""

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401
        if event == "warning":
            super()._tell(event, line, style, **values)


class LiveDisplay(Display):
    """A live status of one or two lines at the bottom of a terminal, with finished cells above it."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic, *, console: Console | None = None) -> None:
        super().__init__(clock)
        self._console = console or ShownConsole(file=stream, highlight=False)
        # Twice a second: the display must not take CPU time from the measured process.
        self._status = self._console.status("", refresh_per_second=2)

    def __enter__(self) -> Self:
        with only_shown():
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        with only_shown():
            self._status.stop()

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401
        if event in ("cell_started", "progress", "turns_started"):
            self._status.update(Text(line))
        else:
            self._console.print(Text(line, style=style))


def make_display(quiet: bool, as_json: bool, *, stream: TextIO | None = None) -> Display:
    """Make the display for the flags and the stream (standard output by default).

    JSON takes precedence over quiet: a program that reads events needs all of them. A live display needs a terminal
    with cursor movement, and is not used under `NO_COLOR` or in CI.
    """
    stream = stream or sys.stdout or io.StringIO()  # None if Python was started without standard output
    if as_json:
        return JsonDisplay(stream)
    if quiet:
        return QuietDisplay(stream)
    plain = any(os.environ.get(name) for name in ("NO_COLOR", "CI")) or os.environ.get("TERM") == "dumb"
    return PlainDisplay(stream) if plain or not stream.isatty() else LiveDisplay(stream)
