"""Display of a run's progress: lines of text."""

import time
from datetime import timedelta
from typing import TextIO

from rich.text import Text

from suite.records.command_line import ShownConsole, only_shown
from suite.records.record import Status
from suite.run.worker import Progress

PROGRESS_EVERY_S = 10.0
"""Minimum seconds between progress lines."""


class Display:
    """Shows the events of a run in order, as lines; the run continues if the output is closed.

    Args:
        stream: Where the lines go; None: standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = ShownConsole(file=stream, highlight=False, soft_wrap=True)
        self._place = ""
        self._run_start = self._start = self._last_line = time.monotonic()

    def run_started(self, cells: int, done_already: int) -> None:
        """A run of `cells` planned cells begins; `done_already` of them have records and are not run again."""
        self._run_start = time.monotonic()
        self._show(f"{cells} cells" + (f", {done_already} of them done already" if done_already else ""))

    def started(self, place: str) -> None:
        """A cell, or the timing of systems in alternation, begins; `place` stands before all that is shown of it."""
        self._place, self._start = place, time.monotonic()
        self._show(f"{place}: started")

    def progress(self, progress: Progress) -> None:
        """Progress of the current cell, or of the timing; `steps` is 0 if it is unknown."""
        if time.monotonic() - self._last_line >= PROGRESS_EVERY_S:
            count = f" {progress.step}/{progress.steps}" if progress.steps else ""
            elapsed = clock_text(time.monotonic() - self._run_start)
            self._show(f"{self._place}: {progress.phase}{count} (elapsed {elapsed})")

    def cell_finished(self, status: Status, *, wall_s: float, summary: str, reason: str = "") -> None:
        """The current cell ended; `summary` has its main figures, `reason` explains a status other than `ok`."""
        found, why = " ".join(summary.split()), " ".join(reason.split())
        line = f"{self._place}: {status} in {clock_text(wall_s)}"
        line += (f", {found}" if found else "") + (f"\n    {why}" if why else "")
        self._show(line, "green" if status is Status.OK else "yellow" if status.good else "red")

    def turns_finished(self) -> None:
        """The timing has ended: every system has finished its turns, or failed."""
        self._show(f"{self._place}: done in {clock_text(time.monotonic() - self._start)}", "green")

    def run_finished(self) -> None:
        """The run has ended."""
        self._show(f"finished in {clock_text(time.monotonic() - self._run_start)}")

    def note(self, text: str) -> None:
        """Show information."""
        self._show(f"note: {text}", "dim")

    def warn(self, text: str) -> None:
        """Show a warning; the text names the remedy."""
        self._show(f"warning: {text}", "yellow")

    def _show(self, line: str, style: str = "") -> None:
        self._last_line = time.monotonic()
        with only_shown():
            self._console.print(Text(line, style=style))


def clock_text(seconds: float) -> str:
    """Seconds as `0:12:05`."""
    return str(timedelta(seconds=round(seconds)))
