"""What the scripts here share: options with several numbers, and tables on the terminal or in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

LOG_WIDTH = 150


def numbers(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(number) for number in text.split(",")]


def console() -> Console:
    """Standard output, as wide as a terminal is or else wide enough for every table here."""
    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH)


def print_table(words: Sequence[str], figures: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table.

    Args:
        words: Titles of the first columns, set flush left.
        figures: Titles of the others, set flush right.
        lines: A cell for each title.
    """
    table = Table(*words)
    for title in figures:
        table.add_column(title, justify="right")
    for line in lines:
        table.add_row(*line)
    console().print(table)
