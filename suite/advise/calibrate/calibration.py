"""What was measured of a machine: the costs of every kernel by shape of the step."""

from __future__ import annotations

from suite.advise.calibrate.kernels import Kernel
from suite.advise.costs import Line
from suite.advise.shape import Shape
from suite.records.model import Model


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

    cpu: str
    gpu: str | None
    shapes: tuple[ShapeCosts, ...]

    def of(self, shape: Shape) -> ShapeCosts | None:
        """The costs of a shape; None: it was not calibrated."""
        return next((costs for costs in self.shapes if costs.shape == shape), None)
