"""Has this machine measured by a process of its own, as cells are measured."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from suite.advise.calibrate.calibration import Calibration
from suite.advise.kernel import Kernel
from suite.advise.shape import Shape
from suite.records.model import Model
from suite.run.starting import worker_environment

OnProgress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much at most."""


class CalibrationFailed(RuntimeError):
    """The process that calibrates ended without a result; the message holds its last words."""


class Order(Model):
    """What a process that calibrates is asked for: the costs of kernels in steps of some shapes.

    It measures for `seconds` over all shapes. Slow steps take longer: three rounds, fewer where these would take more
    than a minute per shape.
    """

    shapes: tuple[Shape, ...]
    kernels: tuple[Kernel, ...]
    seconds: float


def calibrate(
    shapes: Sequence[Shape], kernels: Sequence[Kernel], *, seconds: float, on_progress: OnProgress
) -> Calibration:
    """Measure the costs of kernels for steps of some shapes, in a process of its own; see `Order`.

    Raises:
        CalibrationFailed: the process ended without a result.
    """
    order = Order(shapes=tuple(shapes), kernels=tuple(kernels), seconds=seconds)
    command = [sys.executable, "-u", "-m", "suite.advise.calibrate.measure", order.model_dump_json()]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=worker_environment(), text=True) as process,
    ):
        found: Calibration | None = None
        try:
            for line in process.stdout or ():
                message = json.loads(line)
                if "costs" in message:
                    found = Calibration.model_validate(message)
                else:
                    on_progress(f"calibrating: {message['what']}", message["done"], message["total"])
        except BaseException:
            process.kill()
            raise
        process.wait()
        if found is None:
            log.seek(0)
            said = [line.strip() for line in log if line.strip()]
            raise CalibrationFailed(
                f"the calibration ended with exit code {process.returncode} and no result"
                + (f"; its last line: {said[-1]}" if said else "")
            )
    return found
