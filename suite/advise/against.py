"""How far predictions were off: the cells of a results directory, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import computed_field

from suite.advise.advising import OnProgress
from suite.advise.calibrate.calibrate import calibrated
from suite.advise.case import Case
from suite.advise.counts import Replays, span_of
from suite.advise.described import DescribedCosts
from suite.advise.hardware import Hardware, Matmul
from suite.advise.model import CalibratedCosts, Costs, NotCalibrated, predict
from suite.records import environment
from suite.records.groups import Group, group_records
from suite.records.model import Model
from suite.records.options import BadOption
from suite.records.record import Record
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.run.cell.stream import open_workload
from suite.simulate.models.model import CannotReplay
from suite.simulate.traces.trace import WorkloadTrace


class Compared(Model):
    """One system in one setting; its rounds are merged."""

    workload: str
    data: str
    scale: str
    optimizer: str
    batch_size: int
    system: str
    rounds: int
    predicted_steps_per_s: float
    measured_steps_per_s: float
    """By the median turn of all builds and rounds."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> float:
        """Of the predicted time of a step, relative to the measured one; positive where the model was too slow."""
        return self.measured_steps_per_s / self.predicted_steps_per_s - 1


class LeftOut(Model):
    """One system in one setting that was measured but cannot be predicted."""

    workload: str
    system: str
    reason: str


class Accuracy(Model):
    """What `python -m suite advise --against` found."""

    schema_version: Literal[1] = 1
    results: str
    machine: str
    basis: Literal["calibrated", "modelled"]
    cells: tuple[Compared, ...]
    left_out: tuple[LeftOut, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_absolute_error(self) -> float | None:
        """Over all cells; None: none could be predicted."""
        return median(abs(cell.error) for cell in self.cells) if self.cells else None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What costs are taken from.

    Attributes:
        described: A described machine; None: this one.
        matmul: In which precision a described machine multiplies.
        seconds: How long to calibrate this one.
        calibration: A file to reuse its costs from, or to keep them in.
    """

    described: Hardware | None
    matmul: Matmul
    seconds: float
    calibration: Path | None


def predicted_again(
    results: Path, machine: Machine, *, on_progress: OnProgress = lambda what, done, total: None
) -> Accuracy:
    """Predict every system that a results directory has times of. No time enters a prediction.

    Raises:
        BadOption: nothing was timed, or on another machine; or the calibration's file cannot be used.
        CalibrationFailed: this machine could not be measured.
    """
    subjects: list[_Subject] = []
    left_out: list[LeftOut] = []
    for group in group_records(_measured(results, machine)):
        for system in group.rounds_by_system:
            case = _case_of(group, system, machine)
            if isinstance(case, Case):
                subjects.append(_Subject(group, system, case))
            else:
                left_out.append(LeftOut(workload=group.cell.workload, system=system, reason=case))
    costs, name = _costs([subject.case for subject in subjects], machine, on_progress)
    cells: list[Compared] = []
    for _, same_stream in groupby(subjects, key=lambda subject: subject.group.key):
        replays: Replays | None = None
        for subject in same_stream:
            on_progress("replaying ids", len(cells), len(subjects))
            cell = subject.group.cell
            if replays is None:
                replays = Replays(WorkloadTrace(open_workload(cell), prefix=cell.frequency_prefix), span_of(cell))
            try:
                prediction = predict(subject.case, replays.counts(subject.case), costs)
            except (CannotReplay, NotCalibrated) as error:
                left_out.append(LeftOut(workload=cell.workload, system=subject.system, reason=str(error)))
            else:
                cells.append(_compared(subject, steps_per_s=1 / prediction.step_s))
    return Accuracy(results=str(results), machine=name, basis=costs.basis, cells=tuple(cells), left_out=tuple(left_out))


@dataclass(frozen=True)
class _Subject:
    """A system in a setting, which can be predicted."""

    group: Group
    system: str
    case: Case


def _measured(results: Path, machine: Machine) -> list[Record]:
    """The records with times. Those of other machines are refused, unless a machine is described."""
    found, _ = RecordStore(results).load_all()
    records = [record for record in found if record.status is Status.OK and record.turns is not None]
    if not records:
        raise BadOption(f"--against: {results / 'records'} has no timed system: give the --out of run_bench.py")
    here = environment.capture(threads=1).machine
    others = [record for record in records if record.environment.machine != here]
    if others and machine.described is None:
        where = ", ".join(sorted({record.environment.gpu or record.environment.cpu for record in others}))
        raise BadOption(
            f"--against: {len(others)} of {len(records)} records of {results} were measured on another machine "
            f"({where}): give a directory of this machine's records, or describe that machine with --hardware"
        )
    return records


def _case_of(group: Group, system: str, machine: Machine) -> Case | str:
    """What is to be predicted, or why it cannot be."""
    if machine.described is not None and group.on_cpu:
        return "measured on a CPU, but --hardware describes a machine with a CUDA device"
    cell = group.rounds_by_system[system][0].cell
    try:
        case = Case.of(cell, open_workload(cell))
        _ = case.kernel  # raises for a system that is not here
    except (ValueError, ImportError, OSError) as error:  # of names and data: a sentence each
        return str(error)
    return case


def _costs(cases: Sequence[Case], machine: Machine, on_progress: OnProgress) -> tuple[Costs, str]:
    """Costs of the machine, and its name."""
    if machine.described is not None:
        return DescribedCosts(machine.described, matmul=machine.matmul), machine.described.name
    if not cases:
        raise BadOption("--against: no record is of a system and data that are here: see where --data-dir was")
    made = calibrated(
        list(dict.fromkeys(case.shape for case in cases)),
        list(dict.fromkeys(case.kernel for case in cases)),
        seconds=machine.seconds,
        file=machine.calibration,
        on_progress=on_progress,
    )
    return CalibratedCosts(made), made.gpu or made.cpu


def _compared(subject: _Subject, *, steps_per_s: float) -> Compared:
    runs = subject.group.rounds_by_system[subject.system]
    cell = runs[0].cell
    return Compared(
        workload=cell.workload,
        data=cell.data,
        scale=cell.scale,
        optimizer=cell.optimizer,
        batch_size=cell.batch_size,
        system=cell.system,
        rounds=len(runs),
        predicted_steps_per_s=steps_per_s,
        measured_steps_per_s=1 / median(step_s for run in runs for step_s in _step_seconds(run)),
    )


def _step_seconds(record: Record) -> list[float]:
    """Seconds per step of every turn of every build."""
    turns = record.turns
    return [] if turns is None else [turn_s / turns.steps for build in turns.system_s for turn_s in build]
