"""The display for a terminal that moves its cursor."""

from __future__ import annotations

import time
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from suite.records.status import Status
from suite.run.console.display import Clock, Display, clock_text, opening_text, outcome_text


class LiveDisplay(Display):
    """Three lines at the bottom of a terminal, finished cells scrolling by above them."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic, *, console: Console | None = None) -> None:
        super().__init__(clock)
        self._console = console or Console(file=stream, highlight=False)
        # Twice a second: the display must not take cycles from what is being measured.
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def note(self, text: str) -> None:
        """One line above the live part."""
        self._console.print(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        """One line above the live part."""
        self._console.print(Text(f"warning: {text}", style="yellow"))

    def _on_run_started(self, done_already: int) -> None:
        self._console.print(Text(opening_text(self._cells, done_already)))

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None:
        style = "green" if status is Status.OK else "yellow" if status.good else "red"
        self._console.print(Text(outcome_text(label, status, wall_s=wall_s, summary=summary), style=style))
        if reason:
            self._console.print(Text(f"    {' '.join(reason.split())}"))

    def _on_turns_finished(self, took_s: float) -> None:
        self._console.print(Text(f"{self._label}: done in {clock_text(took_s)}; {self._turns()}", style="green"))

    def _on_run_finished(self, elapsed_s: float) -> None:
        self._console.print(Text(f"finished in {clock_text(elapsed_s)}"))

    def _close(self) -> None:
        self._live.stop()

    def _render(self) -> Group | Text:
        start = self._cell_start
        if start is None:
            return Text(self._times())
        if self._standing is not None:
            bar = ProgressBar(total=self._standing.total, completed=self._standing.done, width=24)
            return Group(Text(self._label, style="bold"), bar, Text(self._turns()), Text(self._times()))
        title = Text(f"[{self._index}/{self._cells}] {self._label}", style="bold", no_wrap=True, overflow="ellipsis")
        work = Table.grid(padding=(0, 1))
        # An unknown number of steps makes the bar pulse.
        work.add_row(ProgressBar(total=self._steps or None, completed=self._step, width=24), Text(self._state()))
        return Group(title, work, Text(f"{clock_text(self._clock() - start)} in this cell; {self._times()}"))
