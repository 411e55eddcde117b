"""Progress of long commands on standard error: a bar on a terminal, a line now and then elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class Shown:
    """Shows how much is done, step after step, and on a terminal the remaining time. A context manager.

    Where there is no terminal, it prints a line every `LINE_EVERY_S` seconds.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
        columns = "{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[words]}", TimeRemainingColumn()
        self._lines = not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=self._lines)
        self._task = self._bar.add_task("", words="", total=None)
        self._step = ""
        self._line = time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show how far a step is.

        Args:
            step: Its name; a new one starts the clock anew.
            done: Bytes, rows or batches that are done.
            total: Of them all; 0 where it is not known.
        """
        if step != self._step:
            self._step = step
            self._bar.reset(self._task, description=step, total=total or None, words="")
        words = f"{done:,} of {total:,}" if total else f"{done:,}"
        self._bar.update(self._task, completed=done, words=words)
        if self._lines and time.monotonic() - self._line >= LINE_EVERY_S:
            self._line = time.monotonic()
            self._console.print(f"{step}: {words}" + (f", {done / total:.0%}" if total else ""))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
