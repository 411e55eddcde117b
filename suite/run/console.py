"""What a run shows while it runs: live in a terminal, lines elsewhere, JSON for programs, or nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from suite.records.status import Status

PROGRESS_EVERY_S = 10.0
"""Plain output shows at most one progress line in so many seconds: logs are read afterwards."""

Clock = Callable[[], float]


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

    def preparing(self, what: str, done: int, total: int) -> None:
        """Before the first cell something goes on of which `done` of `total` is done."""
        self._phase, self._step, self._steps, self._steps_per_s = what, done, total, None
        self._on_preparing()

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

    def _on_preparing(self) -> None: ...

    def _on_cell_started(self) -> None: ...

    def _on_progress(self) -> None: ...

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None: ...

    def _on_run_finished(self, elapsed_s: float) -> None: ...

    def _close(self) -> None: ...

    def _state(self) -> str:
        count = f" {self._step}/{self._steps}" if self._steps else ""
        speed = f", {self._steps_per_s:.1f} steps/s" if self._steps_per_s is not None else ""
        return f"{self._phase}{count}{speed}"

    def _times(self) -> str:
        elapsed = f"elapsed {clock_text(self._clock() - self._run_start)}"
        remaining = self.remaining_s
        return elapsed if remaining is None else f"{elapsed}, about {clock_text(remaining)} left"


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
        self._write(_opening(self._cells, done_already))

    def _on_preparing(self) -> None:
        if self._clock() - self._last_line >= PROGRESS_EVERY_S:
            self._write(f"before the first cell: {self._state()}")
            self._last_line = self._clock()

    def _on_cell_started(self) -> None:
        self._write(f"[{self._index}/{self._cells}] {self._label}: started")
        self._last_line = self._clock()

    def _on_progress(self) -> None:
        if self._clock() - self._last_line >= PROGRESS_EVERY_S:
            self._write(f"[{self._index}/{self._cells}] {self._label}: {self._state()} ({self._times()})")
            self._last_line = self._clock()

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None:
        self._write(f"[{self._index}/{self._cells}] {_outcome(label, status, wall_s=wall_s, summary=summary)}")
        if reason:
            self._write(f"    {' '.join(reason.split())}")

    def _on_run_finished(self, elapsed_s: float) -> None:
        self._write(f"finished in {clock_text(elapsed_s)}")


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
        self._console.print(Text(_opening(self._cells, done_already)))

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None:
        style = "green" if status is Status.OK else "yellow" if status.good else "red"
        self._console.print(Text(_outcome(label, status, wall_s=wall_s, summary=summary), style=style))
        if reason:
            self._console.print(Text(f"    {' '.join(reason.split())}"))

    def _on_run_finished(self, elapsed_s: float) -> None:
        self._console.print(Text(f"finished in {clock_text(elapsed_s)}"))

    def _close(self) -> None:
        self._live.stop()

    def _render(self) -> Group | Text:
        start = self._cell_start
        if start is None and not self._walls_s and self._phase:
            return Text(f"before the first cell: {self._state()}; {self._times()}")
        if start is None:
            return Text(self._times())
        title = Text(f"[{self._index}/{self._cells}] {self._label}", style="bold", no_wrap=True, overflow="ellipsis")
        work = Table.grid(padding=(0, 1))
        # An unknown number of steps makes the bar pulse.
        work.add_row(ProgressBar(total=self._steps or None, completed=self._step, width=24), Text(self._state()))
        return Group(title, work, Text(f"{clock_text(self._clock() - start)} in this cell; {self._times()}"))


class JsonDisplay(Display):
    """One JSON object per event and line, each with its name under `event` and seconds since the start under `at_s`."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream

    def note(self, text: str) -> None:
        """Event `note`."""
        self._emit("note", text=text)

    def warn(self, text: str) -> None:
        """Event `warning`."""
        self._emit("warning", text=text)

    def _on_run_started(self, done_already: int) -> None:
        self._emit("run_started", cells=self._cells, done_already=done_already)

    def _on_preparing(self) -> None:
        self._emit("preparing", what=self._phase, done=self._step, total=self._steps)

    def _on_cell_started(self) -> None:
        self._emit("cell_started", index=self._index, label=self._label)

    def _on_progress(self) -> None:
        self._emit(
            "progress",
            index=self._index,
            phase=self._phase,
            step=self._step,
            steps=self._steps,
            steps_per_s=self._steps_per_s,
        )

    def _on_cell_finished(self, label: str, status: Status, *, wall_s: float, summary: str, reason: str) -> None:
        self._emit(
            "cell_finished",
            index=self._index,
            label=label,
            status=status.value,
            wall_s=wall_s,
            summary=summary,
            reason=reason,
            remaining_s=self.remaining_s,
        )

    def _on_run_finished(self, elapsed_s: float) -> None:
        self._emit("run_finished", elapsed_s=elapsed_s)

    def _emit(self, event: str, **values: object) -> None:
        line = {"event": event, "at_s": round(self._clock() - self._run_start, 3), **values}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def make_display(quiet: bool, as_json: bool, *, stream: TextIO | None = None) -> Display:
    """The display that suits the flags and the stream (standard output by default).

    JSON beats quiet: a program that reads events wants all of them. A live display needs a terminal that moves its
    cursor, and is not wanted under `NO_COLOR` or in CI.
    """
    stream = stream or sys.stdout
    if as_json:
        return JsonDisplay(stream)
    if quiet:
        return QuietDisplay(stream)
    plain = any(os.environ.get(name) for name in ("NO_COLOR", "CI")) or os.environ.get("TERM") == "dumb"
    return PlainDisplay(stream) if plain or not stream.isatty() else LiveDisplay(stream)


def clock_text(seconds: float) -> str:
    """Seconds as `0:07`, `12:05` or `1:40:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _opening(cells: int, done_already: int) -> str:
    done = f", {done_already} of them done already" if done_already else ""
    return f"{cells} cells{done}"


def _outcome(label: str, status: Status, *, wall_s: float, summary: str) -> str:
    return f"{label}: {status.value} in {clock_text(wall_s)}" + (f", {summary}" if summary else "")
