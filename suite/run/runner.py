"""Running the planned cells one after another, resuming, and reporting what there is."""

from __future__ import annotations

import enum
import fcntl
import os
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich.console import Console

from suite.records.groups import group_records
from suite.records.record import Cell, Environment, Record, record_key
from suite.records.scales import SCALES
from suite.records.status import Status
from suite.records.store import RecordStore, StoreError
from suite.run.memory_probes import available_host_bytes
from suite.run.messages import Outcome, Progress
from suite.run.process import Cancelled, Ended, Limits, run_in_process
from suite.tables.comparison import write_tables
from suite.tables.terminal import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.run.console.display import Display

_HOST_SHARE = 0.95
"""Of the memory available at its start, what one cell may hold before it is stopped: the kernel would pick a victim."""


class Choice(enum.Enum):
    """Which of the planned cells run."""

    RESUME = "those without a record"
    FRESH = "all"
    ONLY_FAILED = "those whose record says that they failed"


class Locked(RuntimeError):
    """Another run writes to the same directory; two at once would also spoil each other's timings."""


class Runner:
    """One run of the benchmark.

    Attributes:
        interrupted: Whether Ctrl-C ended the run early.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        out: Path,
        environment: Environment,
        choice: Choice,
        timeout_s: float | None,
    ) -> None:
        self._cells = cells
        self._out = out
        self._environment = environment
        self._choice = choice
        self._timeout_s = timeout_s
        self._store = RecordStore(out)
        self._records: dict[str, Record] = {}
        for cell in cells:
            found = self._store.find(self._key(cell))
            if found is not None and found.status is not Status.INTERRUPTED:
                self._records[found.key] = found
        self.interrupted = False

    def state(self, cell: Cell) -> str:
        """`done`, or `to run`."""
        return "to run" if self._runs(cell) else "done" if self._key(cell) in self._records else "skipped"

    def run(self, display: Display) -> list[Record]:
        """Run what is to run. Returns a record per planned cell that has one, in the order of the plan.

        Raises:
            Locked: another run uses the same directory.
            StoreError: the directory cannot be written at all.
        """
        todo = [cell for cell in self._cells if self._runs(cell)]
        with _lock(self._out):
            for problem in self._store.load_all()[1]:
                display.warn(str(problem))
            display.run_started(len(self._cells), len(self._cells) - len(todo))
            try:
                for cell in todo:
                    self._run_one(cell, display)
            except KeyboardInterrupt:
                self.interrupted = True
                display.warn("interrupted: what is done is kept, the same command goes on from here")
            display.run_finished()
        return self.records()

    def records(self) -> list[Record]:
        """The records of the planned cells, in the order of the plan."""
        keys = [self._key(cell) for cell in self._cells]
        return [self._records[key] for key in keys if key in self._records]

    def report(self, console: Console | None) -> None:
        """Write the tables of the planned cells and print them, unless there is no console.

        Raises:
            StoreError: the tables cannot be written; they were printed before.
        """
        groups = group_records(self.records())
        if console is not None:
            render(console, groups)
        markdown, csv = write_tables(groups, self._out / "tables")
        if console is not None:
            console.print(f"\nTables: {markdown}, {csv}; a record per cell: {self._store.directory}", highlight=False)

    def _key(self, cell: Cell) -> str:
        return record_key(cell, self._environment)

    def _runs(self, cell: Cell) -> bool:
        record = self._records.get(self._key(cell))
        match self._choice:
            case Choice.FRESH:
                return True
            case Choice.RESUME:
                return record is None
            case Choice.ONLY_FAILED:
                return record is not None and not record.status.good

    def _run_one(self, cell: Cell, display: Display) -> None:
        key, label = self._key(cell), cell.label
        log = self._out / "logs" / f"{key}.log"
        display.cell_started(1 + self._cells.index(cell), label)
        started_at = datetime.now(UTC).isoformat(timespec="seconds")

        def show(progress: Progress) -> None:
            display.progress(progress.phase, progress.step, steps=progress.steps, steps_per_s=progress.steps_per_s)

        cancelled: Cancelled | None = None
        try:
            ended = run_in_process(cell, limits=self._limits(cell), log=log, on_progress=show)
        except Cancelled as stop:
            cancelled, ended = stop, stop.ended
        except OSError as error:  # a full disk under the log, no process to be had: this cell's loss alone
            ended = Ended(Outcome(status=Status.CRASHED, reason=f"could not be started: {error}"), "start", 0.0)
        record = self._record(cell, ended, key=key, started_at=started_at)
        self._records[key] = record
        display.cell_finished(
            label, record.status, wall_s=record.wall_s, summary=_summary(record), reason=_with_log(record, log)
        )
        try:
            self._store.write(record)
        except StoreError as error:
            display.warn(f"{error}; the cell is in this run's table but will run again")
        if cancelled is not None:
            raise cancelled

    def _record(self, cell: Cell, ended: Ended, *, key: str, started_at: str) -> Record:
        outcome = ended.outcome
        return Record(
            key=key,
            cell=cell,
            status=outcome.status,
            reason=outcome.reason,
            phase="" if outcome.status is Status.OK else ended.phase,
            started_at=started_at,
            wall_s=ended.wall_s,
            notes=outcome.notes,
            environment=self._environment,
            verification=outcome.verification,
            measurement=outcome.measurement,
            optimum=outcome.optimum,
        )

    def _limits(self, cell: Cell) -> Limits:
        scale = SCALES[cell.scale]
        return Limits(
            wall_s=self._timeout_s if self._timeout_s is not None else scale.timeout_s,
            stall_s=scale.stall_s,
            host_bytes=int(_HOST_SHARE * available_host_bytes()),
        )


def exit_code(records: Sequence[Record], *, planned: int, interrupted: bool) -> int:
    """0 only if every planned cell ended `ok` or was declared unsupported; 130 after Ctrl-C, else 1."""
    if interrupted:
        return 130
    return 0 if len(records) == planned and all(record.status.good for record in records) else 1


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Hold the output directory for one run; the kernel lets go of it however the run ends."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        stream: IO[str] = (out / ".lock").open("w")
    except OSError as error:
        raise StoreError(f"cannot write to {out}: {error.strerror}; choose another directory with --out") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(
                f"another run is writing to {out}: wait for it, or choose another directory with --out"
            ) from None
        stream.write(str(os.getpid()))
        stream.flush()
        yield


def _summary(record: Record) -> str:
    measured = record.measurement
    if measured is None:
        return ""
    hit_rate = measured.traffic.hit_rate
    hits = "" if hit_rate is None else f", hit rate {hit_rate:.3f}"
    return f"{measured.timing.steps_per_s:.1f} it/s, AUROC {measured.quality.auroc:.4f}{hits}"


def _with_log(record: Record, log: Path) -> str:
    """The reason, with the log to read where the process itself went wrong."""
    if record.status in (Status.CRASHED, Status.TIMEOUT, Status.OOM_HOST, Status.OOM_DEVICE):
        return f"{record.reason} (log: {log})"
    return record.reason
