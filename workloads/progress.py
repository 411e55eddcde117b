"""Progress of long commands on standard error: a bar on a terminal, a line now and then elsewhere."""

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0
_RESUMED_S = 0.2


class Shown:
    """Shows how much is done and the remaining time, step after step. A context manager.

    Where there is no terminal, it prints a line every `LINE_EVERY_S` seconds.

    Args:
        resumes: What the first report of a step has done was done by an earlier run, and says nothing of the speed.
        quiet: Show nothing.
    """

    def __init__(self, *, resumes: bool = False, quiet: bool = False) -> None:
        self._console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        terminal = self._console.is_terminal
        self._lines = not quiet and not terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=quiet or not terminal)
        self._task = self._bar.add_task("", rate="", total=None)
        self._resumes = resumes
        self._step = ""
        self._start = self._line = self._latest = time.monotonic()
        self._before = self._rows_before = 0

    def __call__(self, step: str, done: int, total: int, rows: int | None = None) -> None:
        """Show how far a step is.

        Args:
            step: What is done; a new one starts the clock anew.
            done: Bytes, rows or batches that are done.
            total: Of them all; 0 where it is not known.
            rows: Rows that are done, of which the speed is shown; None: `done` of `total` is shown.
        """
        now = time.monotonic()
        if step != self._step:
            # A step that is told of after its first block began when the one before it ended.
            self._step, self._start = step, now if done == 0 else self._latest
            self._before = self._rows_before = 0
            self._bar.reset(self._task, description=step, total=total or None, rate="")
        self._latest = now
        if self._resumes and now - self._start < _RESUMED_S:
            self._before, self._rows_before = done, rows or 0
        if rows is None:
            words = f"{done:,} of {total:,}"
        else:
            rate = (rows - self._rows_before) / max(now - self._start, _RESUMED_S if self._resumes else 1e-9)
            words = f"{rows:,} rows, {rate:,.0f} rows/s"
        self._bar.update(self._task, completed=done, rate=words)
        if self._lines and now - self._line >= LINE_EVERY_S:
            self._line = now
            words += f", {done / total:.0%}" if total else ""
            if total and done > self._before:
                left = (total - done) * (now - self._start) / (done - self._before)
                words += f", {timedelta(seconds=round(left))} left"
            self._console.print(f"{step}: {words}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
