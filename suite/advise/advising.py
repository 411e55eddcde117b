"""From a setting to advice: what is weighed, what steps cost and count, what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from suite.advise.calibrate.calibrate import OnProgress, calibrate
from suite.advise.calibrate.calibration import RowType
from suite.advise.case import Case
from suite.advise.counts import Replays, steady_span
from suite.advise.described import DescribedCosts, Hardware, Matmul
from suite.advise.frontier import Frontier, frontier
from suite.advise.model import Basis, CalibratedCosts, Costs, NotCalibrated, Prediction, predict
from suite.advise.recommend import Candidate, Choice, choose
from suite.advise.shape import Shape
from suite.records.model import Model
from suite.records.record import Cell
from suite.run.cell.stream import open_workload
from suite.simulate.models.model import CannotReplay
from suite.simulate.traces.trace import WorkloadTrace
from systems.contract import Budget, CacheRatio, DeviceBytes, Verdict

SYSTEMS = {
    "cpu": (
        "full_gpu",
        "torchrec_uvm",
        "reference",
        "freq_cache[policy=static]",
        "freq_cache[policy=lfu]",
        "freq_cache[policy=lru]",
        "freq_cache[policy=lfu,look_ahead=16]",
    ),
    "cuda": (
        "full_gpu",
        "fbgemm_uvm",
        "fbgemm_uvm_caching[policy=lru]",
        "fbgemm_uvm_caching[policy=lfu]",
        "fbgemm_uvm_caching[prefetch=on]",
        "freq_cache[policy=static]",
        "freq_cache[policy=lfu]",
        "freq_cache[policy=static,look_ahead=16]",
        "freq_cache[policy=lfu,look_ahead=16]",
    ),
}
"""What `all` weighs by device. On a CPU fbgemm's UVM variants are what `full_gpu` is."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What costs are taken from.

    Attributes:
        described: A described machine; None: this one.
        matmul: In which precision a described machine multiplies.
        seconds: How long to calibrate this one.
    """

    described: Hardware | None
    matmul: Matmul
    seconds: float

    def costs(self, cases: Sequence[Case], on_progress: OnProgress) -> tuple[Costs, str]:
        """Costs that cover the cases, and the machine's name.

        Raises:
            CalibrationFailed: this machine could not be measured.
        """
        if self.described is not None:
            return DescribedCosts(self.described, matmul=self.matmul), self.described.name
        made = calibrate(
            list(dict.fromkeys(case.shape for case in cases)),
            list(dict.fromkeys(case.kernel for case in cases)),
            seconds=self.seconds,
            on_progress=lambda what, done, total: on_progress(f"calibrating: {what}", done, total),
        )
        return CalibratedCosts(made), made.gpu or made.cpu


class Refusal(Model):
    """A case that cannot be predicted, or cannot run."""

    system: str
    row_type: RowType
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

    def fits(self, one: Prediction) -> bool:
        """Whether a prediction is within the budget."""
        return self.budget_bytes is None or one.device_bytes <= self.budget_bytes


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is weighed, from checked options.

    Attributes:
        systems: Their variants.
        row_types: Each is tried.
        ratios: Cached rows as shares of all.
        budget: Bytes of the device, the model included; None: whatever it takes.
        batches: To replay; None: enough.
    """

    systems: Sequence[str]
    row_types: Sequence[RowType]
    ratios: Sequence[float]
    budget: int | None = None
    batches: int | None = None


def advise(
    cell: Cell, asked: Asked, machine: Machine, *, on_progress: OnProgress = lambda what, done, total: None
) -> Advice:
    """Advise on a setting, a cell without its system.

    Raises:
        CalibrationFailed: this machine could not be measured.
    """
    workload = open_workload(cell)
    trace = WorkloadTrace(workload, prefix=cell.frequency_prefix)
    replays = Replays(trace, steady_span(trace, batches=asked.batches))
    pattern = Case.of(cell.model_copy(update={"system": asked.systems[0]}), workload)
    found = list(cases(pattern, asked))
    costs, name = machine.costs(found, on_progress)
    candidates, refused = weigh(found, replays, costs, on_progress=on_progress)
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
        frontier=tuple(frontier(case, largest=round(replays.uncached.largest)) for case in firsts.values()),
    )


def cases(pattern: Case, asked: Asked) -> Iterator[Case]:
    """Every case to be weighed: caches at every ratio and, with a device budget, as large as it allows.

    `pattern` gives tables and shape.
    """
    left = 0 if asked.budget is None else asked.budget - pattern.shape.model_bytes
    budgets: list[Budget] = [CacheRatio(ratio=ratio) for ratio in asked.ratios]
    budgets += [DeviceBytes(total_bytes=left)] if left > 0 else []
    for system in asked.systems:
        for row_type in asked.row_types:
            whole = replace(pattern, system=system, row_type=row_type, budget=CacheRatio(ratio=1.0))
            yield from map(whole.with_budget, budgets) if whole.caches else (whole,)


def weigh(
    found: Sequence[Case],
    replays: Replays,
    costs: Costs,
    *,
    on_progress: OnProgress = lambda what, done, total: None,
) -> tuple[list[Candidate], list[Refusal]]:
    """Predict every case; those that cannot run are refused with the reason, once per system and reason."""
    weighed: list[Candidate] = []
    refused: list[Refusal] = []
    for number, case in enumerate(found):
        on_progress("replaying ids", number, len(found))
        reason = "" if case.support.verdict is Verdict.YES else case.support.reason
        if not reason:
            try:
                weighed.append(Candidate(case, predict(case, replays.counts(case), costs)))
            except (CannotReplay, NotCalibrated) as error:
                reason = str(error)
        if reason:
            refused.append(Refusal(system=case.system, row_type=case.row_type, reason=reason))
    return weighed, list(dict.fromkeys(refused))
