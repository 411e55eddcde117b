"""How far replays are, on standard error."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class Shown:
    """Shows progress on standard error: a bar in a terminal, else a line now and then."""

    def __init__(self, *, quiet: bool, what: str = "replays") -> None:
        self._quiet = quiet
        self._what = what
        self._console = Console(stderr=True, markup=False, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=quiet or not self._console.is_terminal
        )
        self._task = self._bar.add_task("", rate="", total=None)
        self._cells = self._ended = self._batches = self._total = 0
        self._start = self._line = time.monotonic()

    def expect(self, cells: int, batches: int) -> None:
        """So many more cells and batches are to come."""
        self._cells += cells
        self._total += batches
        self._bar.update(self._task, total=self._total, description=self._words())

    def advance(self, batches: int) -> None:
        """So many batches were replayed."""
        now = time.monotonic()
        self._batches += batches
        rate = self._batches / max(now - self._start, 1e-9)
        self._bar.update(self._task, completed=self._batches, rate=f"{rate:,.0f} batches/s")
        if self._bar.disable and not self._quiet and now - self._line >= LINE_EVERY_S:
            self._line = now
            words = f"{self._words()}, {self._batches:,} of {self._total:,} batches, {rate:,.0f} batches/s"
            if self._ended:  # the first replay also compiles
                words += f", {math.ceil((self._total - self._batches) / rate):,} s left"
            self._console.print(words, soft_wrap=True)

    def reached(self, done: int, total: int) -> None:
        """Of all `total` batches so many were replayed."""
        self.advance(done - self._batches)

    def finished(self) -> None:
        """A cell ended."""
        self._ended += 1
        self._bar.update(self._task, description=self._words())

    def _words(self) -> str:
        return f"{self._ended} of {self._cells} {self._what}"

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
