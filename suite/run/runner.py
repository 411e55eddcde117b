"""Running the planned cells one after another, timing their systems in alternation, resuming, and reporting."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from suite.records.command_line import only_shown
from suite.records.environment import Environment, device_name, system_digest
from suite.records.groups import group_records
from suite.records.record import LATEST, Cell, Record, Status, record_key
from suite.records.store import RecordStore, StoreError
from suite.run.agreement import compared, drop_rows, path_of
from suite.run.locks import one_run_in, one_run_on, remove_stale
from suite.run.memory_group import remove_stale_groups
from suite.run.process import limits_of, run_in_process
from suite.run.turns.groups import who_takes_turns
from suite.run.turns.timing import take_turns
from suite.run.worker import CellResult, RunCell
from suite.tables.columns import Columns
from suite.tables.comparison import comparison
from suite.tables.sheet import write_sheets
from suite.tables.terminal import render

if TYPE_CHECKING:
    from suite.run.console.display import Display


class Choice(enum.Enum):
    """Choice of the planned cells that run."""

    RESUME = "those without a record"
    FRESH = "all"
    ONLY_FAILED = "those whose record says that they failed"


class Runner:
    """One run of the benchmark."""

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
        self._environments = {
            system: environment.model_copy(update={"system_code": system_digest(system)})
            for system in dict.fromkeys(cell.system for cell in cells)
        }
        self._choice = choice
        self._timeout_s = timeout_s
        self._store = RecordStore(out)
        found, self._problems = self._store.load_all()
        self._newest = max((record.order for record in found), default=0)
        planned = {self._key(cell): cell for cell in cells}
        # take the planned cell: the data directory is never read from a record
        self._records = {
            record.key: record.model_copy(update={"cell": planned[record.key]})
            for record in found
            if record.key in planned and record.status is not Status.INTERRUPTED
        }
        self._interrupted = False

    def state(self, cell: Cell) -> str:
        """`to run`, `done`, or, with `--only-failed`, `skipped` for a cell without a record."""
        return "to run" if self._runs(cell) else "done" if self._key(cell) in self._records else "skipped"

    def run(self, display: Display) -> list[Record]:
        """Run the cells that `state` calls `to run`. Returns the records of planned cells, in the order of the plan.

        Raises:
            Locked: another run uses the same directory, or a device that this run needs.
            StoreError: the directory, or that of temporary files, cannot be written or is another user's.
        """
        todo = [cell for cell in self._cells if self._runs(cell)]
        groups = [list(cells) for _, cells in itertools.groupby(self._cells, key=lambda one: (one.setting, one.round))]
        with ExitStack() as locks:
            locks.enter_context(one_run_in(self._out))
            if todo or any(map(self._lack_turns, groups)):  # all cells of a run are on one device
                locks.enter_context(one_run_on(device_name(self._cells[0].device)))
            self._remove_stale(display)
            display.run_started(len(self._cells), sum(self.state(cell) == "done" for cell in self._cells))
            try:
                for cells in groups:
                    remaining = [cell for cell in cells if self._runs(cell)]
                    for cell in remaining:
                        self._run_one(cell, display)
                    if remaining or self._lack_turns(cells):
                        self._compare_rows(cells, display)
                    if records := self._lack_turns(cells):
                        self._take_turns(records, display)
            except KeyboardInterrupt:
                self._interrupted = True
                display.warn("interrupted: what is done is kept, the same command goes on from here")
            display.run_finished()
        return self.records()

    def _lack_turns(self, cells: Sequence[Cell]) -> list[Record]:
        """Records of the systems to time; empty if all have all times."""
        records = who_takes_turns(self._of(cells))
        return records if any(one.lacks_turns for one in records) else []

    def _of(self, cells: Sequence[Cell]) -> list[Record]:
        """Records of those cells that have one."""
        return [self._records[key] for cell in cells if (key := self._key(cell)) in self._records]

    def _remove_stale(self, display: Display) -> None:
        """Remove directories and control groups of killed cells, and warn of records that cannot be read."""
        for problem in self._problems:
            display.warn(str(problem))
        try:
            for folder in remove_stale():
                display.note(f"removed {folder}: temporary files of a cell that was killed")
            for group in remove_stale_groups():
                display.note(f"removed {group}: the memory control group of a cell that was killed")
        except OSError as error:
            raise StoreError(
                f"cannot keep temporary files in {error.filename}: {error.strerror}; remove it, or name another place "
                "in the environment variable TMPDIR"
            ) from error

    def records(self) -> list[Record]:
        """The records of the planned cells, in the order of the plan."""
        return self._of(self._cells)

    @property
    def exit_code(self) -> int:
        """0 only if every planned cell ended `ok` or was declared unsupported; 130 after Ctrl-C, else 1."""
        records = self.records()
        good = len(records) == len(self._cells) and all(record.status.good for record in records)
        return 130 if self._interrupted else 0 if good else 1

    def report(self, console: Console, columns: Columns = Columns.MAIN) -> None:
        """Print `columns` of the tables of the planned cells, and write the tables.

        Raises:
            StoreError: the tables cannot be written; they were printed before.
        """
        groups = group_records(self.records())
        with only_shown():
            render(console, groups, columns)
        markdown, csv = write_sheets([comparison(groups)], self._out / "tables", suffixes=("md", "csv"))
        with only_shown():
            told = f"\nTables: {markdown}, {csv}; a record per cell: {self._store.directory}"
            console.print(told, highlight=False)

    def _key(self, cell: Cell) -> str:
        return record_key(cell, self._environments[cell.system])

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
        key = self._key(cell)
        log = self._out / "logs" / f"{key}.log"
        display.started(f"[{1 + self._cells.index(cell)}/{len(self._cells)}] {cell.label}")
        started = self._now()
        result = run_in_process(
            RunCell(cell=cell, rows=path_of(self._out, key).absolute(), optima=(self._out / "optima").absolute()),
            limits=limits_of(cell, timeout_s=self._timeout_s),
            log=log,
            on_progress=display.progress,
        )
        record = self._record(cell, result, started)
        if record.status is Status.INTERRUPTED and key in self._records:
            raise KeyboardInterrupt  # keep the earlier record
        self._records[key] = record
        self._write(record, display)
        reason = _with_log(record, log)
        display.cell_finished(record.status, wall_s=record.wall_s, summary=_summary(record), reason=reason)
        if record.status is Status.INTERRUPTED:
            raise KeyboardInterrupt

    def _compare_rows(self, cells: Sequence[Cell], display: Display) -> None:
        """Compare the sampled rows of the systems of one setting and round; their records get a check."""
        checked = compared(self._of(cells), self._out)
        for record in checked:
            self._records[record.key] = record
            self._write(record, display)
            if not record.status.good:
                display.warn(f"{record.cell.label}: {record.status}: {record.reason}")
        drop_rows(checked, self._out)

    def _take_turns(self, records: Sequence[Record], display: Display) -> None:
        """Time the systems of one setting and round; their records get times."""
        cell = records[0].cell
        log = self._out / "logs" / f"turns-{cell.setting}-r{cell.round}.log"
        logs = log.with_name(f"{log.stem}*{log.suffix}")  # one per timing worker
        for record in take_turns(records, log, display=display, timeout_s=self._timeout_s):
            self._records[record.key] = record
            self._write(record, display)
            if not record.status.good:
                label = record.cell.label
                display.warn(f"{label} failed in its turns: {record.status}: {_with_log(record, logs)}")

    def _write(self, record: Record, display: Display) -> None:
        try:
            self._store.write(record)
        except StoreError as error:
            display.warn(f"{error}; the cell is in this run's table but will run again")

    def _now(self) -> datetime:
        now = datetime.now(UTC)
        self._newest = min(max(int(1e6 * now.timestamp()), self._newest + 1), LATEST)
        return now

    def _record(self, cell: Cell, result: CellResult, started: datetime) -> Record:
        kept = {name: getattr(result, name) for name in CellResult.model_fields}
        if result.status is Status.OK:
            kept["phase"] = ""
        record = Record(
            key=self._key(cell),
            cell=cell,
            started_at=started.isoformat(timespec="seconds"),
            sequence=self._newest,
            environment=self._environments[cell.system],
            **kept,
        )
        return record.untimed() if record.on_virtual_device else record


def _summary(record: Record) -> str:
    measured = record.measurement
    if measured is None:
        return ""
    hit_rate = None if measured.traffic is None else measured.traffic.hit_rate
    hits = "" if hit_rate is None else f", hit rate {hit_rate:.3f}"
    return f"AUROC {measured.quality.auroc:.4f}{hits}"


def _with_log(record: Record, log: Path) -> str:
    """The reason, with the path of the log if the process itself failed."""
    if record.status in (Status.CRASHED, Status.TIMEOUT, Status.OOM_HOST, Status.OOM_DEVICE, Status.OOM_DISK):
        return f"{record.reason} (log: {log})"
    return record.reason
