"""How far predictions were off: the cells of a results directory, predicted and measured."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import computed_field

from suite.advise.advising import Machine
from suite.advise.calibrate.calibrate import OnProgress
from suite.advise.case import Case
from suite.advise.counts import Replays, span_of
from suite.advise.model import Basis, NotCalibrated, predict
from suite.records import environment
from suite.records.groups import Group, group_records
from suite.records.model import Model
from suite.records.options import BadOption
from suite.records.record import Record
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.records.turns import Turns
from suite.run.cell.stream import open_workload
from suite.simulate.models.model import CannotReplay, Span
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
    basis: Basis
    cells: tuple[Compared, ...]
    left_out: tuple[LeftOut, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_absolute_error(self) -> float | None:
        """Over all cells; None: none could be predicted."""
        return median(abs(cell.error) for cell in self.cells) if self.cells else None


def predicted_again(
    results: Path, machine: Machine, *, on_progress: OnProgress = lambda what, done, total: None
) -> Accuracy:
    """Predict every system that a results directory has times of. No time enters a prediction.

    Raises:
        BadOption: nothing was timed, or on another machine.
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
    if not subjects and machine.described is None:
        raise BadOption("--against: no record is of a system and data that are here: see where --data-dir was")
    costs, name = machine.costs([subject.case for subject in subjects], on_progress)
    cells: list[Compared] = []
    for _, same_stream in groupby(subjects, key=lambda subject: subject.group.key):
        replays: dict[Span, Replays] = {}
        for subject in same_stream:
            on_progress("replaying ids", len(cells), len(subjects))
            cell = subject.group.cell
            span = span_of(cell, subject.turns[0])
            if span not in replays:
                replays[span] = Replays(WorkloadTrace(open_workload(cell), prefix=cell.frequency_prefix), span)
            try:
                prediction = predict(subject.case, replays[span].counts(subject.case), costs)
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

    @property
    def turns(self) -> list[Turns]:
        """Of its rounds."""
        return [run.turns for run in self.group.rounds_by_system[self.system] if run.turns is not None]


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


def _compared(subject: _Subject, *, steps_per_s: float) -> Compared:
    cell = subject.group.rounds_by_system[subject.system][0].cell
    step_s = [turn_s / turns.steps for turns in subject.turns for build in turns.system_s for turn_s in build]
    return Compared(
        workload=cell.workload,
        data=cell.data,
        scale=cell.scale,
        optimizer=cell.optimizer,
        batch_size=cell.batch_size,
        system=cell.system,
        rounds=len(subject.turns),
        predicted_steps_per_s=steps_per_s,
        measured_steps_per_s=1 / median(step_s),
    )
