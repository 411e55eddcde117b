"""What was measured of a machine: the costs of every kernel by shape of the step; kept in a file and read again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from suite.advise.calibrate.kernels import Kernel
from suite.advise.costs import Line
from suite.advise.shape import Shape
from suite.records import environment
from suite.records.model import Model
from suite.records.options import BadOption
from suite.records.store import StoreError, write_atomically

SCHEMA_VERSION: Final = 1


class KernelCosts(Model):
    """The named costs of one kernel.

    Without a look-ahead all is on the training thread: `lookup`, `update`, and where a system shows its seams,
    `planning` and `moving` apart from `lookup`. With one, planning is on a thread beside: `beside` is what it takes
    there, `slowed` what training loses by it, and `lookup` includes any wait for it.
    """

    kernel: Kernel
    dense_s: float
    """Of all but the embeddings, beside this kernel: it finds the processor's caches as lookups leave them."""
    lookup: Line
    update: Line
    planning: Line = Line()
    moving: Line = Line()
    beside: Line = Line()
    slowed: Line = Line()


class Point(Model):
    """One point that lines were drawn through."""

    kernel: Kernel
    stream: str
    cache_ratio: float
    lookups: float
    distinct: float
    misses: float
    moved: float
    seconds: dict[str, float]
    """By cost, typical of the rounds."""


class ShapeCosts(Model):
    """The costs of a step of one shape."""

    shape: Shape
    dense_s: float
    """Forward, backward and optimizer of all but the embeddings, whatever the kernel; typical of all of them."""
    kernels: tuple[KernelCosts, ...]
    refused: dict[str, str] = {}
    """Why a kernel could not be built here, by kernel."""
    points: tuple[Point, ...] = ()
    rounds: int

    def of(self, kernel: Kernel) -> KernelCosts | None:
        """The costs of a kernel; None: it was not calibrated."""
        return next((costs for costs in self.kernels if costs.kernel == kernel), None)


class Calibration(Model):
    """All that was calibrated, and where."""

    schema_version: Literal[1] = SCHEMA_VERSION
    machine: str
    cpu: str
    gpu: str | None
    threads: int
    packages: dict[str, str]
    seconds: float
    shapes: tuple[ShapeCosts, ...]

    def of(self, shape: Shape) -> ShapeCosts | None:
        """The costs of a shape; None: it was not calibrated."""
        return next((costs for costs in self.shapes if costs.shape == shape), None)

    def covers(self, shapes: Sequence[Shape], kernels: Sequence[Kernel]) -> bool:
        """Whether nothing of these is missing."""
        found = [self.of(shape) for shape in shapes]
        return all(
            costs is not None and all(costs.of(kernel) or str(kernel) in costs.refused for kernel in kernels)
            for costs in found
        )


def save(calibration: Calibration, path: Path) -> None:
    """Write a calibration to a file, whole or not at all.

    Raises:
        BadOption: it cannot be written.
    """
    try:
        write_atomically(path, calibration.model_dump_json(indent=1) + "\n")
    except StoreError as error:
        raise BadOption(f"--calibration: {error}") from None


def load(path: Path) -> Calibration:
    """Read a calibration made on this machine with these packages.

    Raises:
        BadOption: it cannot be read, is none, or was made elsewhere.
    """
    remedy = "delete it, or name another file, to calibrate anew"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadOption(f"--calibration {path} cannot be read ({reason}): {remedy}") from None
    try:
        found = Calibration.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BadOption(f"--calibration {path} is no calibration: {where}: {first['msg']}; {remedy}") from None
    here = environment.capture(threads=found.threads)
    if found.machine != here.machine:
        raise BadOption(f"--calibration {path} was made on another machine ({found.gpu or found.cpu}): {remedy}")
    changed = sorted(
        name for name in {*found.packages, *here.packages} if found.packages.get(name) != here.packages.get(name)
    )
    if changed:
        raise BadOption(f"--calibration {path} was made with other versions of {', '.join(changed)}: {remedy}")
    if found.threads != here.cores:
        raise BadOption(f"--calibration {path} was made with {found.threads} threads, here are {here.cores}: {remedy}")
    return found
