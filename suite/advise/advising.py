"""From a setting to advice: replay, calibrate or describe, predict, choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.advise import calibration
from suite.advise.advice import Advice
from suite.advise.candidates import cases, weigh
from suite.advise.case import Case
from suite.advise.counts import Replays, steady_span
from suite.advise.described import DescribedCosts
from suite.advise.frontier import frontier
from suite.advise.hardware import Hardware, Matmul
from suite.advise.kernels import RowType
from suite.advise.model import CalibratedCosts, Costs
from suite.advise.paper import beside_published
from suite.advise.recommend import choose
from suite.records.record import Cell
from suite.run.cell.stream import open_workload
from suite.simulate.traces.trace import WorkloadTrace

OnProgress = Callable[[str, int, int], None]
"""Told what goes on, how much of it is done, and of how much."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is weighed, from checked options.

    Attributes:
        systems: Their variants.
        row_types: Each is tried.
        ratios: Cached rows as shares of all.
        budget: Bytes of the device, the model included; None: whatever it takes.
        batches: To replay; None: enough.
        seconds: How long to calibrate.
        calibration: A file to reuse costs from, or to keep them in.
        machine: A described machine; None: this one.
        matmul: In which precision a described machine multiplies.
    """

    systems: Sequence[str]
    row_types: Sequence[RowType]
    ratios: Sequence[float]
    budget: int | None
    batches: int | None
    seconds: float
    calibration: Path | None
    machine: Hardware | None
    matmul: Matmul


def advise(cell: Cell, asked: Asked, *, on_progress: OnProgress = lambda what, done, total: None) -> Advice:
    """Advise on a setting, a cell without its system.

    Raises:
        BadOption: the file of a calibration cannot be used.
        CalibrationFailed: this machine could not be measured.
    """
    machine = asked.machine
    workload = open_workload(cell)
    trace = WorkloadTrace(workload, prefix=cell.frequency_prefix)
    replays = Replays(trace, steady_span(trace, batches=asked.batches))
    pattern = Case.of(cell.model_copy(update={"system": asked.systems[0]}), workload)
    found = list(
        cases(pattern, systems=asked.systems, row_types=asked.row_types, ratios=asked.ratios, budget=asked.budget)
    )
    costs: Costs
    calibrated: calibration.Calibration | None = None
    if machine is None:
        calibrated = _calibrated(found, asked, on_progress)
        costs = CalibratedCosts(calibrated)
        name = calibrated.gpu or calibrated.cpu
    else:
        costs, name = DescribedCosts(machine, matmul=asked.matmul), machine.name
    candidates, refused = weigh(
        found, replays, costs, on_case=lambda done, total: on_progress("replaying ids", done, total)
    )
    firsts = {(case.system, case.row_type): case for case in found}
    published = (
        ()
        if machine is None or cell.scale != "full"
        else beside_published(pattern, replays, machine, workload=workload.name)
    )
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
        published=tuple(published),
        calibration_s=None if calibrated is None else calibrated.seconds,
        probes=None if calibrated is None else calibrated.probes,
    )


def _calibrated(found: Sequence[Case], asked: Asked, on_progress: OnProgress) -> calibration.Calibration:
    """From a file if it covers what is asked for, else measured, and kept there."""
    shapes = list(dict.fromkeys(case.shape for case in found))
    kernels = list(dict.fromkeys(case.kernel for case in found))
    file = asked.calibration
    if file is not None and file.exists():
        earlier = calibration.load(file)
        if earlier.covers(shapes, kernels):
            return earlier
    made = calibration.calibrate(
        shapes,
        kernels,
        seconds=asked.seconds,
        on_progress=lambda what, done, total: on_progress(f"calibrating: {what}", done, total),
    )
    if file is not None:
        calibration.save(made, file)
    return made
