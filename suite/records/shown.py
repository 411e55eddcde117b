"""Showing what others wrote: text that only reads as text, on outputs that may fail."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

log = logging.getLogger(__name__)

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_REPLACED = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}") | {ord("\t"): " ", ord("\n"): "\n"}


def printable(text: str) -> str:
    """Text without control characters, which move a terminal's cursor or turn the order of letters, but line ends."""
    return text.translate(_REPLACED)


class ShownConsole(Console):
    """A console that shows text as text, whoever wrote it.

    A reader that goes away is an `OSError` like any other, and not the end of the program.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something, those of rich's own alone with control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise  # noqa: PLE0704 - rich calls this where it handles one


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
