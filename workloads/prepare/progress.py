"""How far a preparation is, told while it works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Advance = Callable[[int, int], None]
"""Called by a task, again and again, with the bytes that it has read and the rows that it has done."""


def unheard(_bytes: int, _rows: int) -> None:
    """An `Advance` that nobody listens to."""


@dataclass(frozen=True)
class Report:
    """How far a preparation is.

    Attributes:
        step: What it does.
        done, total: Input bytes while reading, rows in other steps; `total` is 0 where it is not known.
        rows: Rows that the step has done.
    """

    step: str
    done: int
    total: int
    rows: int


Progress = Callable[[Report], None]


class Meter:
    """Adds up how far the tasks of a step are, and reports the sum.

    Args:
        step: What the step does.
        totals: Bytes or rows of each task.
        progress: Gets the reports.
    """

    def __init__(self, step: str, totals: Sequence[int], progress: Progress) -> None:
        self._step = step
        self._total = sum(totals)
        self._totals = totals
        self._done = [0] * len(totals)
        self._rows = [0] * len(totals)
        self._progress = progress
        self._report()

    def advance(self, position: int) -> Advance:
        """What the task at this position calls to say how far it is."""

        def listen(read: int, rows: int) -> None:
            self._done[position] = read or min(rows, self._totals[position])
            self._rows[position] = rows
            self._report()

        return listen

    def finish(self, position: int) -> None:
        """Take the task at this position for done: one that runs elsewhere does not say how far it is."""
        self._done[position] = self._totals[position]
        self._report()

    def _report(self) -> None:
        rows = sum(self._rows)
        self._progress(Report(self._step, done=sum(self._done), total=self._total, rows=rows))
