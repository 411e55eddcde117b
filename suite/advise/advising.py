"""From a setting to advice: replay, calibrate or describe, predict, choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from suite.advise.calibrate.calibrate import OnProgress
from suite.advise.calibrate.kernels import RowType
from suite.advise.candidates import Refusal, cases, weigh
from suite.advise.case import Case
from suite.advise.counts import Replays, steady_span
from suite.advise.frontier import Frontier, frontier
from suite.advise.machine import Machine
from suite.advise.model import Prediction
from suite.advise.recommend import Choice, choose
from suite.advise.shape import Shape
from suite.records.model import Model
from suite.records.record import Cell
from suite.run.cell.stream import open_workload
from suite.simulate.traces.trace import WorkloadTrace


class Advice(Model):
    """What `python -m suite advise` found."""

    schema_version: Literal[1] = 1
    workload: str
    scale: str
    machine: str
    basis: Literal["calibrated", "modelled"]
    budget_bytes: int | None
    shape: Shape
    batches: int
    """Replayed, of which `counted` were counted."""
    counted: int
    predictions: tuple[Prediction, ...]
    refused: tuple[Refusal, ...]
    choice: Choice | None
    frontier: tuple[Frontier, ...]

    def by_label(self) -> dict[str, list[Prediction]]:
        """Predictions by system variant, that of the fastest step first; sizes ascending."""
        found: dict[str, list[Prediction]] = {}
        for one in sorted(self.predictions, key=lambda one: (one.step_s, one.device_bytes)):
            found.setdefault(one.label, []).append(one)
        return {label: sorted(sizes, key=lambda one: one.device_bytes) for label, sizes in found.items()}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is weighed, from checked options.

    Attributes:
        systems: Their variants.
        row_types: Each is tried.
        ratios: Cached rows as shares of all.
        budget: Bytes of the device, the model included; None: whatever it takes.
        batches: To replay; None: enough.
        machine: Where costs come from.
    """

    systems: Sequence[str]
    row_types: Sequence[RowType]
    ratios: Sequence[float]
    budget: int | None
    batches: int | None
    machine: Machine


def advise(cell: Cell, asked: Asked, *, on_progress: OnProgress = lambda what, done, total: None) -> Advice:
    """Advise on a setting, a cell without its system.

    Raises:
        CalibrationFailed: this machine could not be measured.
    """
    workload = open_workload(cell)
    trace = WorkloadTrace(workload, prefix=cell.frequency_prefix)
    replays = Replays(trace, steady_span(trace, batches=asked.batches))
    pattern = Case.of(cell.model_copy(update={"system": asked.systems[0]}), workload)
    found = list(
        cases(pattern, systems=asked.systems, row_types=asked.row_types, ratios=asked.ratios, budget=asked.budget)
    )
    costs, name = asked.machine.costs(found, on_progress)
    candidates, refused = weigh(
        found, replays, costs, on_case=lambda done, total: on_progress("replaying ids", done, total)
    )
    firsts = {(case.system, case.row_type): case for case in found}
    return Advice(
        workload=cell.workload,
        scale=cell.scale,
        machine=name,
        basis=costs.basis,
        budget_bytes=asked.budget,
        shape=pattern.shape,
        batches=replays.span.stop,
        counted=replays.span.stop - replays.span.counted_from,
        predictions=tuple(candidate.prediction for candidate in candidates),
        refused=tuple(refused),
        choice=choose(candidates, costs, budget=asked.budget),
        frontier=tuple(frontier(case, largest=replays.survey.largest) for case in firsts.values()),
    )
