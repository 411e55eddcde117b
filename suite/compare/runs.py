"""Two runs to compare: the records below a path, and which cells of two runs are the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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


class NoComparison(ValueError):
    """Two runs cannot be compared; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One system under one setting, as one run has it.

    Attributes:
        group: The systems that it took turns with.
        records: One per round, the newest where a round was run again.
        row: The rounds merged.
    """

    group: Group
    records: tuple[Record, ...]
    row: Row

    @property
    def cell(self) -> Cell:
        """The configuration; of its rounds the first."""
        return self.records[0].cell

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
    """What a path holds.

    Attributes:
        name: What messages call it: `RUN_A` or `RUN_B`.
        path: As the user gave it.
        files: Every readable record, by its file.
        problems: Files that were skipped, and why.
    """

    name: str
    path: Path
    files: dict[Path, Record]
    problems: tuple[Problem, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The newest record of every cell and round, in groups."""
        return tuple(group_records(self.files.values()))

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Every system of every group, in the order of the published tables."""
        return tuple(
            Side(group=group, records=group.rounds_by_system[row.system], row=row)
            for group in self.groups
            for row in merged_rows(group)
            if not row.again
        )


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
    records, problems = _stored(path)
    for file, record in list(records.items()):
        turns = record.turns
        times = () if turns is None else chain(*turns.system_s, *(turns.baseline_s or ()))
        impossible = [seconds for seconds in times if not 0 < seconds < math.inf]
        if impossible:
            del records[file]
            problems.append(Problem(file, f"turns has {impossible[0]} s, no duration; measure it again"))
    if not records:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        skipped = f" (skipped: {problems[0]}{more})" if problems else ""
        raise NoComparison(
            f"{name}: {path} holds no record that can be compared{skipped}; give the directory that `run_bench.py "
            "--out` named"
        )
    return Run(name=name, path=path, files=records, problems=tuple(problems))


def _stored(path: Path) -> tuple[dict[Path, Record], list[Problem]]:
    """Readable records by file, and what was skipped."""
    store = RecordStore(path)
    if path.is_dir():
        if not store.directory.is_dir():
            store.directory = path
        return store.load_files()
    # One file: its neighbours are no part of the run, whatever is wrong with them.
    store.directory = path.parent
    records, problems = store.load_files()
    return {path: records[path]} if path in records else {}, [
        one for one in problems if one.path in (path, path.parent)
    ]


_NOT_IN_LABELS = ("system", "workload", "round", "data_dir", "cache_ratio", "device_budget_bytes")
_SPEAK_FOR_THEMSELVES = ("cache", "data", "device", "machine", "optimizer")


class Place(NamedTuple):
    """Where records were measured: with other threads a machine is not the same."""

    machine: str
    threads: int

    @classmethod
    def of(cls, group: Group) -> Place:
        """Of a group, all of whose records share it."""
        return cls(group.key.machine, group.key.threads)


class Pair(NamedTuple):
    """A cell as both runs have it."""

    before: Side
    after: Side

    @property
    def another_machine(self) -> bool:
        """Whether its speeds are of two machines."""
        return self.before.group.key.machine != self.after.group.key.machine


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Two runs, cell by cell.

    Attributes:
        places: Places of RUN_A, each with the place of RUN_B that it is compared with.
        pairs: Cells that both have, in the order of the published tables.
        only_before, only_after: Cells that one of the runs lacks.
    """

    places: tuple[tuple[Place, Place], ...]
    pairs: tuple[Pair, ...]
    only_before: tuple[Side, ...]
    only_after: tuple[Side, ...]


def match(before: Run, after: Run) -> Matched:
    """Find the cells that two runs share, machine by machine; two runs of one machine each are compared in any case.

    The same machine with other threads is another one.

    Raises:
        NoComparison: both paths lead to the same files, or the runs have no cell in common.
    """
    if {path.resolve() for path in before.files} == {path.resolve() for path in after.files}:
        raise NoComparison(f"RUN_A and RUN_B are the same records, those of {before.path}; give two different runs")
    places = _places(before.groups, after.groups)
    counterpart = dict(places)
    sought = {(Place.of(side.group), side.cell.setting, side.cell.system): side for side in after.sides}
    pairs, only_before = [], []
    for side in before.sides:
        place = counterpart.get(Place.of(side.group))
        other = None if place is None else sought.pop((place, side.cell.setting, side.cell.system), None)
        if other is None:
            only_before.append(side)
        else:
            pairs.append(Pair(side, other))
    if not pairs:
        raise NoComparison(_nothing_in_common(before, after, places=places))
    return Matched(places=places, pairs=tuple(pairs), only_before=tuple(only_before), only_after=tuple(sought.values()))


class Labels:
    """Short names of cells: system, workload, and what tells a cell from the others of its workload.

    Args:
        before, after: Every cell of either run will be named.
    """

    def __init__(self, before: Run, after: Run) -> None:
        self._several_places = any(len({Place.of(group) for group in run.groups}) > 1 for run in (before, after))
        values: dict[tuple[str, str], set[object]] = {}
        for side in (*before.sides, *after.sides):
            for name, value in self._facts(side).items():
                values.setdefault((side.cell.workload, name), set()).add(value)
        self._varying = {key for key, found in values.items() if len(found) > 1}

    def of(self, side: Side) -> str:
        """A cell's name."""
        workload = side.cell.workload
        facts = [_spoken(name, fact) for name, fact in self._facts(side).items() if (workload, name) in self._varying]
        return ", ".join([f"{side.cell.system} x {workload}", *facts])

    def _facts(self, side: Side) -> dict[str, object]:
        facts = {name: getattr(side.cell, name) for name in Cell.model_fields if name not in _NOT_IN_LABELS}
        facts |= {"cache": cache(side.cell)}
        # Where each run has one machine only, there is nothing to tell apart, even if they are two.
        return facts | (Place.of(side.group)._asdict() if self._several_places else {})


def place_title(group: Group) -> str:
    """A machine for people: its device, digest and threads."""
    return f"{group.key.device} ({group.key.machine}, {group.key.threads} threads)"


def _places(before: Sequence[Group], after: Sequence[Group]) -> tuple[tuple[Place, Place], ...]:
    """Places that both have; where there is none, the only one of each; else nobody can tell which belong together."""
    ours, theirs = (sorted({Place.of(group) for group in groups}) for groups in (before, after))
    shared = [place for place in ours if place in theirs]
    if shared:
        return tuple(zip(shared, shared, strict=True))
    return ((ours[0], theirs[0]),) if len(ours) == len(theirs) == 1 else ()


def _spoken(name: str, value: object) -> str:
    if value is None:
        return f"no {name.replace('_', ' ')}"
    if name in _SPEAK_FOR_THEMSELVES:
        return str(value)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')} {shown}"


def _nothing_in_common(before: Run, after: Run, *, places: Sequence[tuple[Place, Place]]) -> str:
    """The sentence that says what each run has, where that differs altogether."""
    start = "RUN_A and RUN_B have no cell in common"
    remedy = "run the same systems, workloads and options in both"
    if not places:
        titles = [", ".join(dict.fromkeys(place_title(group) for group in run.groups)) for run in (before, after)]
        return (
            f"{start}: RUN_A was measured on {titles[0]}, RUN_B on {titles[1]}, and with several machines or numbers "
            "of threads nobody can tell which belong together; give each machine's records as a directory of its own"
        )
    apart = []
    for name in Cell.model_fields:
        if name in ("round", "data_dir"):
            continue
        ours, theirs = ({getattr(side.cell, name) for side in run.sides} for run in (before, after))
        if not ours & theirs:
            apart.append(f"{name.replace('_', ' ')} {_listed(ours)} against {_listed(theirs)}")
    if apart:
        return f"{start}: they differ in {'; '.join(apart)}; {remedy}"
    names = [_listed({f"{side.cell.system} x {side.cell.workload}" for side in run.sides}) for run in (before, after)]
    return f"{start}: RUN_A has {names[0]}; RUN_B has {names[1]}, under other options where names agree; {remedy}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(value) for value in values))
