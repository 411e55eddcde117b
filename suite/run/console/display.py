"""What a run shows while it runs: lines for logs, a live part in a terminal, JSON for programs, or warnings alone."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Self, TextIO

from rich.console import Console
from rich.text import Text

from suite.records.shown import ShownConsole, only_shown, printable
from suite.records.status import Status
from suite.run.messages import Progress

PROGRESS_EVERY_S = 10.0
"""Plain output shows at most one progress line in so many seconds: logs are read afterwards."""

Clock = Callable[[], float]
"""Seconds, as `time.monotonic` gives them."""


class Display(AbstractContextManager["Display"]):
    """Told what happens in a run, in order; a context manager that leaves the terminal as it was.

    By itself it shows nothing. It does the bookkeeping of all displays, so that they state the same remaining time: the
    mean wall time of the cells finished so far, for every cell left, minus what the cell in hand has already taken.
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
        """Leave the terminal as it was."""

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401 - whatever belongs to it
        """Show an event: its line, in a style of rich's, or its values."""

    def _show(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401 - as of `_tell`
        """Tell of an event; the run goes on where nobody can be told."""
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
        """Systems begin to take turns."""
        self._index, self._label, self._standing, self._start = None, label, "", self._clock()
        self._show("turns_started", f"{label}: started", label=label)

    def progress(self, progress: Progress) -> None:
        """How far the cell in hand is, or the turns are: whose turn it is and how the ratios stand.

        `steps` is 0 where nobody can count them.
        """
        count = f" {progress.step}/{progress.steps}" if progress.steps else ""
        left = "" if self.remaining_s is None else f", about {clock_text(self.remaining_s)} left"
        elapsed = clock_text(self._clock() - self._run_start)
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in progress.ratios.items())
        self._standing = f"; relative to the baseline: {ratios}" if ratios else ""
        line = f"{self._place}: {progress.phase}{count}{self._standing} (elapsed {elapsed}{left})"
        self._show("progress", line, index=self._index, **progress.model_dump(exclude={"kind"}))

    def cell_finished(self, status: Status, *, wall_s: float, summary: str, reason: str = "") -> None:
        """The cell in hand ended; `summary` says what it measured, `reason` why it is not `ok`."""
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
        """All have taken all their turns, or failed."""
        took_s, self._start = self._clock() - (self._start or self._clock()), None
        line = f"{self._label}: done in {clock_text(took_s)}{self._standing}"
        self._show("turns_finished", line, "green", label=self._label, wall_s=took_s)

    def run_finished(self) -> None:
        """Nothing is left to run."""
        elapsed_s = self._clock() - self._run_start
        self._show("run_finished", f"finished in {clock_text(elapsed_s)}", elapsed_s=elapsed_s)

    def note(self, text: str) -> None:
        """Something worth knowing."""
        self._show("note", f"note: {text}", "dim", text=text)

    def warn(self, text: str) -> None:
        """Something to act upon; the text says how."""
        self._show("warning", f"warning: {text}", "yellow", text=text)

    @property
    def remaining_s(self) -> float | None:
        """Estimated time to the end of the last cell, in seconds. None: none has finished yet, or turns are taken."""
        if not self._walls_s or self._index is None:
            return None
        in_hand = self._clock() - self._start if self._start is not None else 0.0
        mean = sum(self._walls_s) / len(self._walls_s)
        # A cell that takes longer than the mean does not eat into the time of those after it.
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
        # a log that is followed, or the last line before a crash, must not wait in a buffer
        print(printable(line), file=self._stream, flush=True)


class JsonDisplay(PlainDisplay):
    """One JSON object per event and line, each with its name under `event` and seconds since the start under `at_s`."""

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401
        found = {"event": event, "at_s": round(self._clock() - self._run_start, 3), **values}
        print(json.dumps(found), file=self._stream, flush=True)


class QuietDisplay(PlainDisplay):
    """Warnings alone."""

    def _tell(self, event: str, line: str, style: str = "", **values: Any) -> None:  # noqa: ANN401
        if event == "warning":
            super()._tell(event, line, style, **values)


class LiveDisplay(Display):
    """A line or two at the bottom of a terminal say what goes on, finished cells scrolling by above it."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic, *, console: Console | None = None) -> None:
        super().__init__(clock)
        self._console = console or ShownConsole(file=stream, highlight=False)
        # Twice a second: the display must not take cycles from what is being measured.
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
