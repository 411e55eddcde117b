"""Two runs to compare: the records below a path, and which cells of two runs are the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from suite.records.groups import Group, group_records
from suite.records.record import Cell, Record
from suite.records.status import Status
from suite.records.store import Problem, RecordStore
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache

_NOT_IN_LABELS = ("system", "workload", "round", "data_dir", "cache_ratio", "device_budget_bytes")
_SPEAK_FOR_THEMSELVES = ("cache", "data", "device", "machine", "optimizer")


class NoComparison(ValueError):
    """Two runs cannot be compared; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One system under one setting, as one run has it; a record per round, and the rounds merged."""

    group: Group
    records: tuple[Record, ...]
    row: Row

    @property
    def cell(self) -> Cell:
        """The configuration; of its rounds the first."""
        return self.records[0].cell

    @property
    def place(self) -> tuple[str, int]:
        """Where it was measured: with other threads a machine is not the same."""
        return self.group.key.machine, self.group.key.threads

    @property
    def ok(self) -> bool:
        """Whether every round ended well."""
        return self.row.status is Status.OK

    @property
    def verified(self) -> bool:
        """Whether every verification passed, and there was one."""
        return self.row.verified not in (None, "no")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a path holds: readable records by file, and files that were skipped; `name` is `RUN_A` or `RUN_B`."""

    name: str
    path: Path
    files: dict[Path, Record]
    problems: tuple[Problem, ...]

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Every system of every group, in the order of the published tables; of each round the newest record."""
        return tuple(
            Side(group=group, records=group.rounds_by_system[row.system], row=row)
            for group in group_records(self.files.values())
            for row in merged_rows(group)
            if not row.again
        )


class Pair(NamedTuple):
    """A cell as both runs have it."""

    before: Side
    after: Side

    @property
    def another_machine(self) -> bool:
        """Whether its speeds are of two machines."""
        return self.before.group.key.machine != self.after.group.key.machine


def read_run(name: str, path: Path) -> Run:
    """Read a results directory, a directory of records, or one record; `name` is what messages call the run.

    Raises:
        NoComparison: there is no such path, or no record that can be read.
    """
    try:
        found = path.exists()
    except OSError as error:
        raise NoComparison(f"{name}: {path} cannot be read: {error.strerror}; change its permissions") from error
    if not found:
        raise NoComparison(f"{name}: there is no {path}; give a results directory, as in results, or a record file")
    if path.is_file() and path.suffix != ".json":
        raise NoComparison(f"{name}: {path} is no record, whose name ends in .json; give one, or a results directory")
    store = RecordStore(path)
    if not store.directory.is_dir():
        store.directory = path if path.is_dir() else path.parent
    records, problems = store.load_files()
    if path.is_file():  # its neighbours are no part of the run, whatever is wrong with them
        records = {file: record for file, record in records.items() if file == path}
        problems = [problem for problem in problems if problem.path in (path, path.parent)]
    for file in [file for file, record in records.items() if not _took_time(record)]:
        del records[file]
        problems.append(Problem(file, "has a turn of no duration; measure it again"))
    if not records:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        skipped = f" (skipped: {problems[0]}{more})" if problems else ""
        raise NoComparison(
            f"{name}: {path} holds no record that can be compared{skipped}; give the directory that `run_bench.py "
            "--out` named"
        )
    return Run(name=name, path=path, files=records, problems=tuple(problems))


def _took_time(record: Record) -> bool:
    times = () if record.turns is None else chain(*record.turns.system_s, *(record.turns.baseline_s or ()))
    return all(0 < seconds < math.inf for seconds in times)


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Two runs, cell by cell, in the order of the published tables; `only_...` are the cells that the other lacks."""

    pairs: tuple[Pair, ...]
    only_before: tuple[Side, ...]
    only_after: tuple[Side, ...]


def match(before: Run, after: Run) -> Matched:
    """Find the cells that two runs share, machine by machine; two runs of one machine each are compared in any case.

    Raises:
        NoComparison: both paths lead to the same files, or the runs have no cell in common.
    """
    if {path.resolve() for path in before.files} == {path.resolve() for path in after.files}:
        raise NoComparison(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    by_place = _several_places(before) or _several_places(after)

    def key(side: Side) -> tuple[object, ...]:
        return by_place and side.place, side.cell.setting, side.cell.system

    sought = {key(side): side for side in after.sides}
    found = [(side, sought.pop(key(side), None)) for side in before.sides]
    pairs = tuple(Pair(side, other) for side, other in found if other is not None)
    if not pairs:
        raise NoComparison(_nothing_in_common(before, after))
    return Matched(
        pairs=pairs,
        only_before=tuple(side for side, other in found if other is None),
        only_after=tuple(sought.values()),
    )


def _several_places(run: Run) -> bool:
    return len({side.place for side in run.sides}) > 1


class Labels:
    """Short names of cells: system, workload, and what tells a cell from the others of its workload in two runs."""

    def __init__(self, before: Run, after: Run) -> None:
        # Where each run has one machine only, there is nothing to tell apart, even if they are two.
        self._alike = () if _several_places(before) or _several_places(after) else ("machine", "threads")
        values: dict[tuple[str, str], set[object]] = {}
        for side in (*before.sides, *after.sides):
            for name, value in _facts(side).items():
                values.setdefault((side.cell.workload, name), set()).add(value)
        self._varying = {key for key, found in values.items() if len(found) > 1 and key[1] not in self._alike}

    def of(self, side: Side) -> str:
        """A cell's name."""
        workload = side.cell.workload
        facts = [_spoken(name, fact) for name, fact in _facts(side).items() if (workload, name) in self._varying]
        return ", ".join([f"{side.cell.system} x {workload}", *facts])


def _facts(side: Side) -> dict[str, object]:
    facts = {name: getattr(side.cell, name) for name in Cell.model_fields if name not in _NOT_IN_LABELS}
    machine, threads = side.place
    return facts | {"cache": cache(side.cell), "machine": machine, "threads": threads}


def _spoken(name: str, value: object) -> str:
    if value is None:
        return f"no {name.replace('_', ' ')}"
    if name in _SPEAK_FOR_THEMSELVES:
        return str(value)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')} {shown}"


def _nothing_in_common(before: Run, after: Run) -> str:
    """The sentence that says in what two runs differ altogether."""
    facts = [
        [{"cell": f"{side.cell.system} x {side.cell.workload}"} | _facts(side) for side in run.sides]
        for run in (before, after)
    ]
    apart = []
    for name in facts[0][0]:
        ours, theirs = ({side[name] for side in sides} for sides in facts)
        if not ours & theirs:
            apart.append(f"{name.replace('_', ' ')} {_listed(ours)} against {_listed(theirs)}")
    differ = f": they differ in {'; '.join(apart)}" if apart else ""
    return (
        f"RUN_A and RUN_B have no cell in common{differ}; run the same systems, workloads and options in both, and "
        "give each machine's records as a directory of its own"
    )


def _listed(values: Sequence[object] | set[object]) -> str:
    return ", ".join(sorted(map(str, values)))
