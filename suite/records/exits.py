"""How commands end: their exit codes, and errors as a sentence on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from suite.records.store import StoreError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""


@contextmanager
def errors_told(
    *failures: type[Exception], usage: type[ValueError] = ValueError, left: str = "nothing was finished"
) -> Iterator[Console]:
    """Turn errors into a sentence on standard error and an exit code. Gives the console to tell more on.

    `failures`, beside those of files that cannot be written, end the command with `FAILED`, and `usage` with `USAGE`:
    errors of options, names and data are all a `ValueError`. `left` is said after Ctrl-C, which is `INTERRUPTED`.
    """
    failing: tuple[type[Exception], ...] = (StoreError, OSError, *failures)
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    try:
        yield errors
    except usage as error:
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(USAGE) from None
    except failing as error:
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        errors.print(f"interrupted: {left}", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
