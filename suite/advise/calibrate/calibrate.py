"""What steps cost on this machine, measured by a process of its own as cells are, and what that says of a case."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import ClassVar

from suite.advise.case import Case, Weighed
from suite.advise.costs import Basis, Counts, Line, NotCalibrated, Terms
from suite.advise.shape import Shape
from suite.records.base import Model
from suite.run.start import worker_environment

OnProgress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much at most."""


class CalibrationFailed(RuntimeError):
    """The process that calibrates ended without a result; the message holds its last words."""


class KernelCosts(Model):
    """The costs of one kernel in steps of one shape, by the names that `Calibration` has."""

    shape: Shape
    kernel: Weighed
    exposed: dict[str, Line]
    hidden: dict[str, Line]
    """On a thread beside training."""


class Calibration(Model):
    """The costs that were measured of this machine.

    - dense: forward, backward and optimizer of the MLPs and the interaction, the very shape, measured beside the
      kernel: it finds the processor's caches as lookups leave them;
    - calls: what looking up and updating cost whatever the ids: features are cut, kernels called, tables gone through;
    - lookup, update: the same per id and per distinct row; with a look-ahead, any wait for planning is in `lookup`;
    - planning: finding distinct rows and misses and choosing victims, on the training thread; with a look-ahead what
      training loses to the thread that plans, the rest of which is hidden;
    - moving: rows into the cache and out of it.
    """

    basis: ClassVar[Basis] = "calibrated"
    machine: str
    costs: tuple[KernelCosts, ...]
    refused: dict[str, str] = {}
    """Why a kernel could not be built here, by kernel."""

    def terms(self, case: Case, counts: Counts) -> Terms:
        """The named costs of a step. Raises `NotCalibrated` if they are not known."""
        costs = next((one for one in self.costs if (one.shape, one.kernel) == (case.shape, case.kernel)), None)
        if costs is None:
            raise NotCalibrated(
                f"{case.kernel.label} was not calibrated: {self.refused.get(case.kernel.label, 'it was not asked for')}"
            )
        exposed_s, hidden_s = (
            {name: line.seconds(counts) for name, line in lines.items()} for lines in (costs.exposed, costs.hidden)
        )
        return exposed_s, hidden_s


class Order(Model):
    """What a process that calibrates is asked for: the costs of kernels in steps of some shapes.

    It measures for `seconds` over all shapes. Slow steps take longer: three rounds, fewer where these would take more
    than a minute per shape.
    """

    shapes: tuple[Shape, ...]
    kernels: tuple[Weighed, ...]
    seconds: float


def calibrate(cases: Sequence[Case], *, seconds: float, on_progress: OnProgress) -> Calibration:
    """Measure what the kernels of cases cost in steps of their shapes, in a process of its own; see `Order`.

    Raises:
        CalibrationFailed: the process ended without a result.
    """
    shapes, kernels = dict.fromkeys(case.shape for case in cases), dict.fromkeys(case.kernel for case in cases)
    order = Order(shapes=tuple(shapes), kernels=tuple(kernels), seconds=seconds)
    command = [sys.executable, "-u", "-m", "suite.advise.calibrate.measure", order.model_dump_json()]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=worker_environment(), text=True) as process,
    ):
        found: Calibration | None = None
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    found = Calibration.model_validate_json(line)
                else:
                    what, done, total = json.loads(line)
                    on_progress(f"calibrating: {what}", done, total)
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
