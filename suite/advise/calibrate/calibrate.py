"""Has this machine measured by a process of its own, as cells are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from pydantic import Field

from suite.advise.calibrate.calibration import Calibration, Kernel
from suite.advise.shape import Shape
from suite.records.model import Model
from suite.run.starting import worker_environment

_LAST_WORDS = 2048


class CalibrationFailed(RuntimeError):
    """The process that calibrates ended without a result; the message holds its last words."""


class Order(Model):
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
    seconds: float,
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
            [sys.executable, "-u", "-m", "suite.advise.calibrate.measure"],
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
