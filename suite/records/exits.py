"""How commands end: their exit codes, and errors as a sentence on standard error."""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer
from rich.console import Console

from suite.records.options import BadOption
from suite.records.store import StoreError
from systems.registry import UnknownSystem
from workloads.errors import DataError

log = logging.getLogger(__name__)

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
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
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


@contextmanager
def only_shown() -> Iterator[None]:
    """Show what is kept elsewhere: where output is full or closed, a warning says so and what follows is dropped."""
    try:
        yield
    except OSError as error:
        log.warning("warning: standard output fails (%s): nothing more is shown", error.strerror or error)
        with suppress(OSError):  # it is no file
            # what waits in its buffer would fail again at the end, and change the exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


class ShownConsole(Console):
    """A console whose reader may go away, which is an `OSError` like any other and not the end of the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise  # noqa: PLE0704 - rich calls this where it handles one
