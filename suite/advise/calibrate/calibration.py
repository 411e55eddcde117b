"""What was measured on this machine, and what it says of a step."""

from typing import ClassVar

from suite.advise.case import Case
from suite.advise.costs import Basis, Counts, Line, NotCalibrated, Terms
from suite.advise.kernel import Kernel
from suite.advise.shape import Shape
from suite.records.model import Model


class KernelCosts(Model):
    """The named costs of one kernel in steps of one shape.

    Without a look-ahead all is on the training thread: `lookup`, `update`, and where a system shows its seams,
    `planning` and `moving` apart from `lookup`. With one, planning is on a thread beside: `beside` is what it takes
    there, `slowed` what training loses by it, and `lookup` includes any wait for it.
    """

    shape: Shape
    kernel: Kernel
    dense_s: float
    """Of all but the embeddings, beside this kernel: it finds the processor's caches as lookups leave them."""
    lookup: Line
    update: Line
    planning: Line = Line()
    moving: Line = Line()
    beside: Line = Line()
    slowed: Line = Line()


class Calibration(Model):
    """The costs that were measured of this machine.

    - dense: forward, backward and optimizer of the MLPs and the interaction, the very shape, measured;
    - calls: what looking up and updating cost whatever the ids: features are cut, kernels called, tables gone through;
    - lookup, update: the same per id and per distinct row;
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
                f"{case.kernel} was not calibrated: {self.refused.get(str(case.kernel), 'it was not asked for')}"
            )
        slowed_s = costs.slowed.seconds(counts)
        return Terms.of(
            {
                "dense": costs.dense_s,
                "calls": costs.lookup.fixed_s + costs.update.fixed_s,
                "lookup": costs.lookup.varying_s(counts),
                "update": costs.update.varying_s(counts),
                "planning": costs.planning.seconds(counts) + slowed_s,
                "moving": costs.moving.seconds(counts),
            },
            {"planning": costs.beside.seconds(counts) - slowed_s},
        )
