"""What command lines share: the names that options take, how their values are read, and the error for bad ones."""

import enum
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

from systems.registry import near, split_list
from workloads import DataError
from workloads.schema import DATASETS, SCHEMAS
from workloads.streams.tracks import label, split_name

_SIZE = TypeAdapter(ByteSize)


class BadOption(ValueError):
    """An option that cannot be; the message names the flag, what was found and what is expected."""


class ScaleName(enum.StrEnum):
    """How large a run is."""

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
    names = [name for part in split_list(text) for name in (DATASETS if part == "all" else [_synthetic(part, flag)])]
    if not names:
        raise BadOption(f"{flag}: none named: give all, or some of {', '.join(SCHEMAS)}")
    return tuple(dict.fromkeys(names))


def _synthetic(name: str, flag: str) -> str:
    """The name as the workload itself spells it."""
    try:
        dataset, track = split_name(name)
    except DataError as error:
        raise BadOption(f"{flag}: {error}") from None
    if dataset not in SCHEMAS:
        hint = near(dataset, SCHEMAS) or f"known: {', '.join(SCHEMAS)}; your own data go with --data-dir"
        raise BadOption(f"{flag}: unknown workload '{dataset}': {hint}")
    return f"{dataset}@{label(track)}" if track else dataset


def parse_prepared(
    text: str, folders: Mapping[str, Path], *, data_dir: Path, flag: str = "--workloads"
) -> tuple[str, ...]:
    """Of the datasets that `data_dir` holds, those that `flag` names, each once; `all`: published ones first.

    Raises:
        BadOption: one is not there.
    """
    there = [*(name for name in SCHEMAS if name in folders), *sorted(name for name in folders if name not in SCHEMAS)]
    names = [name for part in split_list(text) for name in (there if part == "all" else [part])]
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
    if not names:
        raise BadOption(f"{flag}: none named: give all, or some of {', '.join(there)}")
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
