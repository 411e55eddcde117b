"""Rows that are refused: malformed ones, counted against an allowance, and rows that go back in time."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from workloads.errors import DataError
from workloads.prepare.formats import Column

LOGGED_BAD_ROWS = 10
_LOG = logging.getLogger(__name__)


class RowChecks:
    """Counts the bad rows of a file that are left out, and refuses rows that are earlier than the row before them.

    `problems` says what was wrong, without the file's name, in order. Without a column of `time` there is no order.
    """

    def __init__(self, path: Path, *, allowed: int, time: Column | None = None) -> None:
        self._path = path
        self._allowed = allowed
        self._time = time
        self._last: int | None = None
        self.problems: list[str] = []

    def add(self, problem: str) -> None:
        """Count one bad row; DataError with its position when no more are allowed."""
        count = len(self.problems)
        if count == self._allowed:
            raise too_many_bad_rows(self._path, problem, allowed=self._allowed)
        self.problems.append(problem)
        if count < LOGGED_BAD_ROWS:
            _LOG.warning("left out %s:%s", self._path, problem)

    def check_order(self, rows: pl.DataFrame, where: Callable[[int], str]) -> None:
        """Check the next rows; DataError where one goes back in time, with what `where` says of it."""
        if self._time is None or not rows.height:
            return
        times = rows[self._time.name].to_numpy()
        back = np.flatnonzero(np.diff(times, prepend=times[0] if self._last is None else self._last) < 0)
        self._last = int(times[-1])
        if back.size:
            raise DataError(
                f"{self._path}:{where(int(back[0]))}: column {self._time.name}: earlier than the row before it. "
                "Sort the file by time, then name the sorted one"
            )


def too_many_bad_rows(path: Path, problem: str, *, allowed: int) -> DataError:
    """The error for the first bad row that is not allowed."""
    note = f" (bad row {allowed + 1}; --skip-bad-rows allows {allowed})" if allowed else ""
    return DataError(f"{path}:{problem}{note}. Mend the row, or leave such rows out with --skip-bad-rows N")
