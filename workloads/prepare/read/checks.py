"""Rows that are refused: malformed ones, counted against an allowance, and rows that go back in time."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

import numpy as np
import polars as pl

from workloads.errors import DataError
from workloads.prepare.columns import Column

LOGGED_BAD_ROWS = 10
_LOG = logging.getLogger(__name__)


class BadRows:
    """Counts the bad rows of a file that are left out, and raises an error at the first one too many.

    Attributes:
        problems: What was wrong, without the file's name, in order.
    """

    def __init__(self, path: Path, *, allowed: int) -> None:
        """Begin at a file.

        Args:
            path: The file, for messages.
            allowed: Rows that may be left out of it.
        """
        self._path = path
        self._allowed = allowed
        self.problems: list[str] = []

    def add(self, problem: str) -> None:
        """Count one bad row; DataError with its position when no more are allowed."""
        count = len(self.problems)
        if count == self._allowed:
            raise too_many_bad_rows(self._path, problem, allowed=self._allowed)
        self.problems.append(problem)
        if count < LOGGED_BAD_ROWS:
            _LOG.warning("left out %s:%s", self._path, problem)


def too_many_bad_rows(path: Path, problem: str, *, allowed: int) -> DataError:
    """The error for the first bad row that is not allowed."""
    note = f" (bad row {allowed + 1}; --skip-bad-rows allows {allowed})" if allowed else ""
    return DataError(f"{path}:{problem}{note}. Mend the row, or leave such rows out with --skip-bad-rows N")


class TimeOrder:
    """Finds rows of one file that are earlier than the row before them."""

    def __init__(self) -> None:
        self._last: int | None = None

    def first_back(self, times: pl.Series) -> int | None:
        """The first of the next rows that is earlier than the row before it; None where none is."""
        values = times.to_numpy()
        if not values.size:
            return None
        back = np.flatnonzero(np.diff(values, prepend=values[0] if self._last is None else self._last) < 0)
        self._last = int(values[-1])
        return int(back[0]) if back.size else None


def out_of_order(where: str, column: Column, *, sorting: str) -> DataError:
    """The error for a row that goes back in time.

    Args:
        where: File and row.
        column: The time column.
        sorting: Python code that sorts the file.
    """
    return DataError(
        f"{where}: column {column.name}: earlier than the row before it. Sort the file by time, then name the sorted "
        f"one: python -c {shlex.quote('import polars as pl; ' + sorting)}"
    )


def sorted_name(path: Path) -> str:
    """Where the sorting code of `out_of_order` writes, as a word of Python."""
    return json.dumps(f"{path}.sorted")
