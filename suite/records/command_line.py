"""Shared by command lines: options' values, errors as a sentence, and text that only reads as text."""

import enum
import io
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from suite.records.store import StoreError
from systems.registry import UnknownSystem, near, split_list
from workloads import DataError
from workloads.schema import DATASETS, SCHEMAS
from workloads.streams.tracks import split_name

_SIZE = TypeAdapter(ByteSize)


class BadOption(ValueError):
    """An option that cannot be; the message names the flag, what was found and what is expected."""


class ScaleName(enum.StrEnum):
    """Sizes of a run."""

    SMOKE = "smoke"
    SMALL = "small"
    FULL = "full"


class OptimizerName(enum.StrEnum):
    """The optimizer of rows and MLPs alike."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"


def parse_workloads(text: str, *, flag: str = "--workloads") -> tuple[str, ...]:
    """The synthetic workloads that `flag` names, each once: `all` or names, with a track or without.

    Raises:
        BadOption: one is unknown, and the near ones are named, or its track is.
    """
    names = _all_or_named(text, flag, every=DATASETS, known=SCHEMAS)
    for name in names:
        try:
            dataset, _ = split_name(name)
        except DataError as error:
            raise BadOption(f"{flag}: {error}") from None
        if dataset not in SCHEMAS:
            hint = near(dataset, SCHEMAS) or f"known: {', '.join(SCHEMAS)}; your own data go with --data-dir"
            raise BadOption(f"{flag}: unknown workload '{dataset}': {hint}")
    return names


def parse_prepared(
    text: str, folders: Mapping[str, Path], *, data_dir: Path, flag: str = "--workloads"
) -> tuple[str, ...]:
    """The datasets of `data_dir` that `flag` names, each once; `all`: published ones first.

    Raises:
        BadOption: one is not there.
    """
    there = [*(name for name in SCHEMAS if name in folders), *sorted(name for name in folders if name not in SCHEMAS)]
    names = _all_or_named(text, flag, every=there, known=there)
    for name in names:
        if name in folders:
            continue
        if "@" in name:
            raise BadOption(f"{flag}: {name} is a synthetic stream: leave out --data-dir, or the track")
        from workloads.manifest import prepare_command  # brings torch, which planning does without

        hint = near(name, there)
        make = f"Make it: {prepare_command(data_dir / name)}"
        raise BadOption(
            f"--data-dir: {data_dir} holds no {name}, only {', '.join(there)}{hint and '; ' + hint}. {make}"
        )
    return names


def _all_or_named(text: str, flag: str, *, every: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names of a list, each once, with `every` one for `all`."""
    names = [name for part in split_list(text) for name in (every if part == "all" else [part])]
    if not names:
        raise BadOption(f"{flag}: none named: give all, or some of {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def parse_bytes(text: str, *, flag: str) -> int:
    """Bytes of `1.5GiB`, `800MB` or `1000000`, given with an option.

    Raises:
        BadOption: not a positive size.
    """
    size = 0
    if re.fullmatch(r"\d*\.?\d+\s*[A-Za-z]*", text.strip()):  # pydantic takes 1,5GB for 1
        with suppress(ValidationError):
            size = _SIZE.validate_python(text)
    if size < 1:
        raise BadOption(f"{flag}: '{text}' is not a size: write 1.5GiB, 800MB or a number of bytes")
    return size


def parse_sizes(text: str | None, *, flag: str) -> tuple[int, ...]:
    """Bytes of every size that `64MiB,256MiB` lists; nothing where nothing was given.

    Raises:
        BadOption: one is not a positive size.
    """
    return tuple(parse_bytes(part, flag=flag) for part in text.split(",")) if text is not None else ()


def parse_shares(text: str | None, *, flag: str) -> tuple[float, ...]:
    """The numbers that `0.005,0.05` lists; nothing where nothing was given.

    Raises:
        BadOption: one is no number above 0 and at most 1.
    """
    shares = []
    for part in text.split(",") if text is not None else ():
        share = 0.0
        with suppress(ValueError):
            share = float(part)
        if not 0 < share <= 1:  # NaN compares false with everything
            raise BadOption(f"{flag}: {part.strip() or 'nothing'} is out of range, it must be above 0 and at most 1")
        shares.append(share)
    return tuple(shares)


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
