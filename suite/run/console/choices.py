"""Choices of the command line before planning: systems, device and display."""

import enum
import io
import os
import sys
from typing import TextIO

from suite.records.command_line import BadOption
from suite.records.environment import visible_gpu
from suite.run.console.display import Display, JsonDisplay, LiveDisplay, PlainDisplay, QuietDisplay
from systems import registry, selection


class Device(enum.StrEnum):
    """Device to run on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Tier(enum.StrEnum):
    """Slow tier of the comparison."""

    MEMORY = "memory"
    DISK = "disk"


def named_systems(
    text: str, *, cuda: bool = False, on_drive: bool = False, on_ranks: bool = False
) -> list[registry.Variant]:
    """Parse `--systems`; variants with user-given parameters or a user's module are imported to check them.

    `all` depends on `cuda`, `on_drive` (rows on a drive) and `on_ranks` (sharded over several processes).

    Raises:
        UnknownSystem: a name, a parameter or a value is not known; a `ValueError`.
        BadOption: a user's module cannot be imported.
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
            except Exception as error:  # the import of a user's module can raise anything
                if ":" in variant.name:
                    raise BadOption(f"--systems: cannot import {variant}: {type(error).__name__}: {error}") from error
                # one of our systems lacks a package: its cell will report which
    return variants


def choose_device(device: Device) -> tuple[str, str]:
    """Choose the device, `cpu` or `cuda`. Returns it, and a sentence with the reason.

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
    import torch  # only now: the parent process of a CPU run does not need it

    if torch.cuda.is_available():
        return "cuda", f"device: cuda ({gpu.model})"
    remedy = "run make setup again, it picks the CUDA builds when it sees the device"
    if device is Device.CUDA:
        raise BadOption(f"--device cuda: torch {torch.__version__} cannot use the {gpu.model}; {remedy}")
    return "cpu", f"device: cpu, because torch {torch.__version__} cannot use the {gpu.model}; {remedy}"


def make_display(quiet: bool, as_json: bool, *, stream: TextIO | None = None) -> Display:
    """Make the display for the flags and the stream (standard output by default).

    JSON takes precedence over quiet: a program that reads events needs all of them. A live display needs a terminal
    with cursor movement, and is not used under `NO_COLOR` or in CI.
    """
    stream = stream or sys.stdout or io.StringIO()  # None if Python was started without standard output
    if as_json:
        return JsonDisplay(stream)
    if quiet:
        return QuietDisplay(stream)
    plain = any(os.environ.get(name) for name in ("NO_COLOR", "CI")) or os.environ.get("TERM") == "dumb"
    return PlainDisplay(stream) if plain or not stream.isatty() else LiveDisplay(stream)
