"""What was measured of a machine: the costs of every kernel by shape of the step, and what plain operations take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from suite.advise.costs import Line
from suite.advise.kernels import Kernel
from suite.advise.shape import Described, Shape
from suite.records import environment
from suite.records.options import BadOption
from suite.records.store import StoreError, write_atomically
from suite.run.process import worker_environment

SCHEMA_VERSION: Final = 1
_LAST_WORDS = 2048


class CalibrationFailed(RuntimeError):
    """The process that calibrates ended without a result; the message holds its last words."""


class Probes(Described):
    """What the machine can do, measured with plain operations; on a CPU, host and device are the same memory."""

    gather_gb_per_s: float
    """Rows of 512 B picked at random on the host, bytes read."""
    to_device_gb_per_s: float
    to_host_gb_per_s: float
    memory_gb_per_s: float
    """Of the device: a copy, bytes read and written."""
    launch_s: float
    """A call of the smallest operation, queued behind others."""
    matmul_flops: float
    """fp32, of a product of two square matrices."""


class KernelCosts(Described):
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


class Point(Described):
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


class ShapeCosts(Described):
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


class Calibration(Described):
    """All that was calibrated, and where."""

    schema_version: Literal[1] = SCHEMA_VERSION
    machine: str
    cpu: str
    gpu: str | None
    threads: int
    packages: dict[str, str]
    seconds: float
    probes: Probes
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


class Order(Described):
    """What a process that calibrates is asked for."""

    shapes: tuple[Shape, ...]
    kernels: tuple[Kernel, ...]
    seconds: float = Field(gt=0)


OnProgress = Callable[[str, int, int], None]
"""Told what is measured, how many rounds are done, and of how many at most."""


def calibrate(
    shapes: Sequence[Shape],
    kernels: Sequence[Kernel],
    *,
    seconds: float = 60.0,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Calibration:
    """Measure the costs of kernels for steps of some shapes, in a process of its own, as cells are measured.

    Args:
        shapes: Of the steps to be predicted.
        kernels: Of the systems to be predicted.
        seconds: How long to measure, over all shapes. Slow steps take longer: three rounds, fewer
            where these would take more than a minute per shape.
        on_progress: Called between rounds.

    Raises:
        CalibrationFailed: the process ended without a result.
    """
    order = Order(shapes=tuple(shapes), kernels=tuple(dict.fromkeys(kernels)), seconds=seconds)
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-u", "-m", "suite.advise.calibrator"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=worker_environment(),
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as sink:
                sink.write(order.model_dump_json() + "\n")
        except BrokenPipeError:
            pass  # it died at once; what it said is read below
        found: Calibration | None = None
        try:
            for line in process.stdout:
                message = json.loads(line)
                if "calibration" in message:
                    found = Calibration.model_validate(message["calibration"])
                else:
                    on_progress(message["what"], message["done"], message["total"])
        except BaseException:
            process.kill()
            raise
        process.wait()
        if found is None:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
            said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            raise CalibrationFailed(
                f"the calibration ended with exit code {process.returncode} and no result"
                + (f"; its last line: {said[-1]}" if said else "")
            )
    return found


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
