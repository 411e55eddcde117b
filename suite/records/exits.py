"""How commands end: their exit codes, and errors as a sentence on standard error."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from suite.records.options import BadOption
from suite.records.shown import ShownConsole
from suite.records.store import StoreError
from systems.registry import UnknownSystem
from workloads import DataError

MISTAKES = (BadOption, DataError, UnknownSystem)
"""Errors of options, data and names, with a message for the user. Any other `ValueError` is a bug with a traceback."""
FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""


@contextmanager
def errors_told(*failures: type[Exception], left: str = "nothing was finished") -> Iterator[Console]:
    """Turn errors into a sentence on standard error and an exit code. Gives the console to tell more on.

    `failures`, beside those of files that cannot be written, end the command with `FAILED`, and `MISTAKES` with
    `USAGE`. `left` is said after Ctrl-C, which is `INTERRUPTED`. Standard output escapes what its encoding lacks.
    """
    failing: tuple[type[Exception], ...] = (StoreError, OSError, *failures)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    errors = ShownConsole(stderr=True, soft_wrap=True, markup=False, highlight=False)
    try:
        yield errors
    except MISTAKES as error:
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(USAGE) from None
    except failing as error:
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        errors.print(f"interrupted: {left}", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
