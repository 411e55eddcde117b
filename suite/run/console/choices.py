"""What the command line settles before anything is planned: systems, the device, and how to show a run."""

import enum
import io
import os
import sys
from typing import TextIO

from suite.records.environment import visible_gpu
from suite.records.options import BadOption
from suite.run.console.display import Display, JsonDisplay, LiveDisplay, PlainDisplay, QuietDisplay
from systems import registry, selection


class Device(enum.StrEnum):
    """Where to run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Tier(enum.StrEnum):
    """Where the slow rows of the comparison are."""

    MEMORY = "memory"
    DISK = "disk"


def named_systems(
    text: str, *, cuda: bool = False, on_drive: bool = False, on_ranks: bool = False
) -> list[registry.Variant]:
    """The variants named; those with parameters of the user's, or a module of their own, are imported to be checked.

    `all` depends on whether they run on a CUDA device, keep rows on a drive, and are shared by several processes.

    Raises:
        UnknownSystem: a name, a parameter or a value is not known; a `ValueError`.
        BadOption: a module of one's own cannot be imported.
    """
    every = selection.ALL_ON_CUDA if cuda else selection.ALL
    if on_drive or on_ranks:
        every = selection.ALL_ON_RANKS if on_ranks else selection.GROUPS["disk"]
    variants = selection.parse_systems(text, every=every)
    ours = set(selection.ALL_ON_CUDA).union(*selection.GROUPS.values())
    if on_ranks:
        ours = set(selection.ALL_ON_RANKS)
    for variant in variants:
        if (str(variant) not in ours and (variant.parameters or on_ranks)) or ":" in variant.name:
            try:
                registry.load(variant, on_ranks=on_ranks)
            except registry.UnknownSystem:
                raise
            except Exception as error:  # a module of one's own can raise anything while it is imported
                if ":" in variant.name:
                    raise BadOption(f"--systems: cannot import {variant}: {type(error).__name__}: {error}") from error
                # a package is missing for one of ours: its cell will say which
    return variants


def choose_device(device: Device) -> tuple[str, str]:
    """The device to run on, `cpu` or `cuda`, and why.

    Raises:
        BadOption: CUDA was asked for and cannot be used.
    """
    if device is Device.CPU:
        return "cpu", "device: cpu, as asked"
    gpu = visible_gpu()
    if gpu is None:
        if device is Device.CUDA:
            raise BadOption("--device cuda: no NVIDIA device is visible; use --device cpu")
        return "cpu", "device: cpu, because no NVIDIA device is visible"
    import torch  # only now: the parent process of a CPU run does without

    if torch.cuda.is_available():
        return "cuda", f"device: cuda ({gpu.model})"
    remedy = "run make setup again, it picks the CUDA builds when it sees the device"
    if device is Device.CUDA:
        raise BadOption(f"--device cuda: torch {torch.__version__} cannot use the {gpu.model}; {remedy}")
    return "cpu", f"device: cpu, because torch {torch.__version__} cannot use the {gpu.model}; {remedy}"


def make_display(quiet: bool, as_json: bool, *, stream: TextIO | None = None) -> Display:
    """The display that suits the flags and the stream (standard output by default).

    JSON beats quiet: a program that reads events wants all of them. A live display needs a terminal that moves its
    cursor, and is not wanted under `NO_COLOR` or in CI.
    """
    stream = stream or sys.stdout or io.StringIO()  # Python has no standard output where it was started with none
    if as_json:
        return JsonDisplay(stream)
    if quiet:
        return QuietDisplay(stream)
    plain = any(os.environ.get(name) for name in ("NO_COLOR", "CI")) or os.environ.get("TERM") == "dumb"
    return PlainDisplay(stream) if plain or not stream.isatty() else LiveDisplay(stream)
