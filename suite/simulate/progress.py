"""How far a long command is, on standard error."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class Shown:
    """Shows progress on standard error: a bar in a terminal, else a line every `LINE_EVERY_S` seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._lines = not quiet and not self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._start = self._line = time.monotonic()
        self._begun = self._total = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """So much of `total` is done of what goes on."""
        self._bar.update(self._task, description=what, completed=done, total=total)
        now = time.monotonic()
        if total != self._total:  # something else goes on, or more of the same
            self._start, self._begun, self._total = now, done, total
        if self._lines and now - self._line >= LINE_EVERY_S:
            self._line = now
            words = f"{what}: {done:,} of {total:,}"
            if done > self._begun:
                words += f", {math.ceil((total - done) * (now - self._start) / (done - self._begun)):,} s left"
            self._console.print(words, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
