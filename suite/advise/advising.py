"""From a setting to advice: what is weighed, what steps cost and count, what follows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from suite.advise.calibrate.calibrate import OnProgress, calibrate
from suite.advise.case import Case, RowType, Weighed
from suite.advise.costs import Basis, NotCalibrated
from suite.advise.counts import Replays, steady_span
from suite.advise.frontier import Frontier, frontier
from suite.advise.prediction import Costs, Prediction, predict
from suite.advise.recommend import Candidate, Choice, choose
from suite.advise.shape import Shape
from suite.records.base import Model
from suite.records.record import Cell
from suite.run.cell.stream import open_workload
from suite.simulate.models.model import CannotReplay
from suite.simulate.trace import WorkloadTrace
from systems.contract import Budget, CacheRatio, DeviceBytes, Verdict


class Refusal(Weighed):
    """A case that cannot be predicted, or cannot run."""

    reason: str


class Advice(Model):
    """What `python -m suite advise` found."""

    schema_version: Literal[1] = 1
    workload: str
    scale: str
    machine: str
    basis: Basis
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


def advise(
    cells: Sequence[Cell],
    described: Costs | None,
    *,
    row_types: Sequence[RowType],
    ratios: Sequence[float],
    budget: int | None,
    batches: int | None,
    seconds: float,
    on_progress: OnProgress,
) -> Advice:
    """Advise on a setting.

    Args:
        cells: Systems that are weighed, in one setting.
        described: What steps cost on a described machine. None: this machine is measured, for so many `seconds`.
        row_types: What their rows are kept in; each is tried.
        ratios: Cached rows as shares of all.
        budget: Bytes of the device, the model included; None: whatever it takes.
        batches: To replay; None: enough.
        seconds: See `described`.
        on_progress: Told how far it is.

    Raises:
        CalibrationFailed: this machine could not be measured.
    """
    cell = cells[0]
    workload = open_workload(cell)
    trace = WorkloadTrace(workload, prefix=cell.frequency_prefix)
    replays = Replays(trace, steady_span(trace, batches=batches))
    variants = [replace(Case.of(one, workload), row_type=row_type) for one in cells for row_type in row_types]
    found = [sized for variant in variants for sized in sizes(variant, ratios, budget)]
    least = partial(frontier, largest=round(replays.uncached.largest))
    known = [one for one in found if one.support.verdict is Verdict.YES]
    costs = described or calibrate(known, seconds=seconds, on_progress=on_progress)
    candidates, refused = weigh(found, replays, costs, on_progress=on_progress)
    return Advice(
        workload=cell.workload,
        scale=cell.scale,
        machine=costs.machine,
        basis=costs.basis,
        budget_bytes=budget,
        shape=variants[0].shape,
        batches=replays.span.stop,
        counted=replays.span.stop - replays.span.counted_from,
        predictions=tuple(candidate.prediction for candidate in candidates),
        refused=tuple(refused),
        choice=choose(candidates, costs, budget=budget),
        frontier=tuple(found for found in map(least, variants) if found is not None),
    )


def sizes(variant: Case, ratios: Sequence[float], budget: int | None) -> list[Case]:
    """A variant at every size to be weighed: caches at every ratio and as large as a device budget allows."""
    budgets: list[Budget] = [CacheRatio(ratio=ratio) for ratio in (ratios if variant.caches else (1.0,))]
    left = 0 if budget is None else budget - sum(variant.beside_bytes.values())
    if variant.caches and left > 0:
        budgets.append(DeviceBytes(total_bytes=left))
    return [replace(variant, budget=one) for one in budgets]


def weigh(
    cases: Sequence[Case], replays: Replays, costs: Costs, *, on_progress: OnProgress
) -> tuple[list[Candidate], list[Refusal]]:
    """Predict every case; those that cannot run are refused with the reason, once per system and reason."""
    weighed: list[Candidate] = []
    refused: list[Refusal] = []
    for number, case in enumerate(cases):
        on_progress("replaying ids", number, len(cases))
        reason = "" if case.support.verdict is Verdict.YES else case.support.reason
        if not reason:
            try:
                weighed.append(Candidate(case, predict(case, replays.counts(case), costs)))
            except (CannotReplay, NotCalibrated) as error:
                reason = str(error)
        if reason:
            refused.append(Refusal(system=case.system, row_type=case.row_type, reason=reason))
    return weighed, list(dict.fromkeys(refused))
