"""How far predictions were off: the cells of a results directory, predicted and measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import computed_field

from suite.advise.calibrate.calibrate import OnProgress, calibrate
from suite.advise.case import Case
from suite.advise.costs import Basis, NotCalibrated
from suite.advise.counts import Replays
from suite.advise.prediction import Costs, Prediction, predict
from suite.records import environment
from suite.records.base import Model
from suite.records.groups import group_records
from suite.records.options import BadOption, OptimizerName, parse_workloads
from suite.records.record import Cell, Record
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.records.turns import Turns
from suite.run.cell.stream import open_workload
from suite.simulate.models.model import CannotReplay, Span
from suite.simulate.trace import WorkloadTrace
from suite.tables.settings import cache
from systems.contract import Verdict
from systems.registry import UnknownSystem
from workloads.batch import Split, Workload
from workloads.errors import DataError
from workloads.prepared import PreparedWorkload, find_prepared

_WIDEST = 1 << 20
_MOST_LOOKUPS = 1 << 33
"""Of a replay: some minutes."""


class Compared(Model):
    """One system in one setting; its rounds are merged."""

    workload: str
    data: str
    scale: str
    optimizer: str
    batch_size: int
    embedding_dim: int
    cache: str
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
    unreadable: tuple[str, ...] = ()
    """Files that are no records, and why."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_absolute_error(self) -> float | None:
        """Over all cells; None: none could be predicted."""
        return median(abs(cell.error) for cell in self.cells) if self.cells else None


def predicted_again(
    results: Path, described: Costs | None, *, data_dir: Path | None = None, seconds: float, on_progress: OnProgress
) -> Accuracy:
    """Predict every system that a results directory has times of. No time enters a prediction.

    Args:
        results: As `run_bench.py --out` named it.
        data_dir: Where datasets were prepared, for records of real data; none is opened where a record says it is.
        described: What steps cost on a described machine. None: this machine is measured, for so many `seconds`.
        seconds: See `described`.
        on_progress: Told how far it is.

    Raises:
        BadOption: nothing was timed, or on another machine.
        DataError: the prepared data are damaged.
        CalibrationFailed: this machine could not be measured.
    """
    subjects: list[tuple[tuple[Record, ...], Case, Span]] = []
    left_out: list[LeftOut] = []
    prepared = {} if data_dir is None else find_prepared(data_dir)
    found, problems = RecordStore(results).load_all()
    for group in group_records(_measured(found, results, anywhere=described is not None)):
        for runs in group.rounds_by_system.values():
            try:
                first = runs[0]
                assert first.turns is not None
                subjects.append((runs, *_case(first.cell, first.turns, described, prepared)))
            except (BadOption, DataError, UnknownSystem, ImportError) as error:  # of names and data: a sentence each
                left_out.append(_left_out(runs[0].cell, error))
    if not subjects and described is None:
        raise BadOption(f"--against: no record can be predicted, e.g. {left_out[0].system}: {left_out[0].reason}")
    costs = described or calibrate([case for _, case, _ in subjects], seconds=seconds, on_progress=on_progress)
    cells: list[Compared] = []
    replays: dict[object, Replays] = {}
    for number, (runs, case, span) in enumerate(subjects):
        on_progress("replaying ids", number, len(subjects))
        cell, turns = runs[0].cell, [run.turns for run in runs if run.turns is not None]
        stream = cell.setting, cell.round_seed, span
        if stream not in replays:
            replays = {stream: Replays(WorkloadTrace(_stream(cell, prepared), prefix=cell.frequency_prefix), span)}
        try:
            prediction = predict(case, replays[stream].counts(case), costs)
        except (CannotReplay, NotCalibrated) as error:
            left_out.append(_left_out(cell, error))
        else:
            cells.append(_compared(cell, turns, prediction))
    return Accuracy(
        results=str(results),
        machine=costs.machine,
        basis=costs.basis,
        cells=tuple(cells),
        left_out=tuple(left_out),
        unreadable=tuple(map(str, problems)),
    )


def _case(cell: Cell, turns: Turns, described: Costs | None, prepared: Mapping[str, Path]) -> tuple[Case, Span]:
    """What is to be predicted of a cell, and which batches of its stream count.

    Records are data: no code that one names is imported, and no directory that one names is opened.

    Raises:
        BadOption, DataError, UnknownSystem, ImportError: nothing can be; the message says why.
    """
    if ":" in cell.system:
        raise BadOption("a system of one's own, which is never imported because a record names it")
    if described is not None and cell.device == "cpu":
        raise BadOption("measured on a CPU, but --hardware describes a machine with a CUDA device")
    if cell.host_budget_bytes is not None:
        raise BadOption("measured with rows on a drive, at a host budget, which no calibration holds systems to")
    workload = _stream(cell, prepared)
    span = _span(cell, turns, workload)
    case = Case.of(cell, workload)
    if case.support.verdict is not Verdict.YES:
        raise BadOption(case.support.reason)
    return case, span


def _stream(cell: Cell, prepared: Mapping[str, Path]) -> Workload:
    """The stream that a cell was measured on.

    Raises:
        BadOption: there is none, or it is not here.
        DataError: the prepared data are damaged.
    """
    _check_sizes(cell)
    if cell.data == "real":
        if cell.workload not in prepared:
            raise BadOption("measured on real data, which are opened where --data-dir says: give it too")
        workload = PreparedWorkload.open(prepared[cell.workload], batch_size=cell.batch_size)
        if workload.digest != cell.data_digest:
            raise BadOption(f"measured on other data than {prepared[cell.workload]} holds: give theirs as --data-dir")
        return workload
    parse_workloads(cell.workload)
    return open_workload(cell)


def _check_sizes(cell: Cell) -> None:
    """Refuse what no command line gives. Raises `BadOption`."""
    widths = (cell.batch_size, cell.embedding_dim, *cell.bottom_mlp, *cell.top_mlp)
    fine = {
        f"optimizer {cell.optimizer}": cell.optimizer in list(OptimizerName),
        f"a cache ratio of {cell.cache_ratio}": 0 < (1.0 if cell.cache_ratio is None else cell.cache_ratio) <= 1,
        f"a frequency prefix of {cell.frequency_prefix}": 0 < cell.frequency_prefix <= 1,
        f"an embedding dim of {cell.embedding_dim}": cell.embedding_dim % 4 == 0,
        f"a seed of {cell.round_seed}": 0 <= cell.round_seed < 1 << 63,
        f"batches or layers of {max(widths):,}": min(widths) > 0 and max(widths) <= _WIDEST,
    }
    strange = [what for what, possible in fine.items() if not possible]
    if strange:
        raise BadOption(f"no run has {strange[0]}")


def _span(cell: Cell, turns: Turns, workload: Workload) -> Span:
    """The batches after a build, of which those of turns count. Raises `BadOption`: there are not so many."""
    span = Span(counted_from=cell.warmup_steps, stop=cell.warmup_steps + len(turns.system_s[0]) * turns.steps)
    longest = min(workload.batches(Split.TRAIN), _MOST_LOOKUPS // workload.batch_lookups)
    if not 0 <= span.counted_from < span.stop <= longest:
        raise BadOption(f"{span.stop:,} batches of {cell.batch_size:,} are more than there are, or too many to replay")
    return span


def _compared(cell: Cell, turns: Sequence[Turns], prediction: Prediction) -> Compared:
    step_s = [turn_s / one.steps for one in turns for build in one.system_s for turn_s in build]
    return Compared(
        **cell.model_dump(include={"workload", "data", "scale", "optimizer", "batch_size", "embedding_dim", "system"}),
        cache=cache(cell),
        rounds=len(turns),
        predicted_steps_per_s=1 / prediction.step_s,
        measured_steps_per_s=1 / median(step_s),
    )


def _left_out(cell: Cell, reason: object) -> LeftOut:
    return LeftOut(workload=cell.workload, system=cell.system, reason=str(reason))


def _measured(found: Sequence[Record], results: Path, *, anywhere: bool) -> list[Record]:
    """The records with times. Those of other machines are refused, unless they may be of `anywhere`."""
    records = [record for record in found if record.status is Status.OK and record.turns is not None]
    if not records:
        raise BadOption(f"--against: {results / 'records'} has no timed system: give the --out of run_bench.py")
    here = environment.capture(threads=1).machine
    others = [record for record in records if record.environment.machine != here]
    if others and not anywhere:
        where = ", ".join(sorted({record.environment.gpu or record.environment.cpu for record in others}))
        raise BadOption(
            f"--against: {len(others)} of {len(records)} records of {results} were measured on another machine "
            f"({where}): give a directory of this machine's records, or describe that machine with --hardware"
        )
    return records
