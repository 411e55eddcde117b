"""Progress of a preparation, from its tasks to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Advance = Callable[[int, int], None]
"""Called by a task, again and again, with the bytes that it has read and the rows that it has done."""


def unheard(_bytes: int, _rows: int) -> None:
    """An `Advance` that does nothing."""


Progress = Callable[[str, int, int, int], None]
"""Called with what is done, how much of it is done and how much there is (input bytes while reading, rows in other
steps; 0 where it is not known), and the rows that are done."""


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
        self._progress(self._step, sum(self._done), self._total, sum(self._rows))
