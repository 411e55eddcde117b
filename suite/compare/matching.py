"""Which cells of two runs are the same: equal configuration, on the same machine where both runs have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from suite.compare.runs import NoComparison, Run, Side
from suite.records.groups import Group
from suite.records.record import Cell
from suite.tables.settings import cache

_Key = TypeVar("_Key", str, int)
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
    """Find the cells that two runs share.

    A run that holds records of several machines is compared machine by machine, with those that the other has too; if
    both hold one machine each, these two are compared, equal or not. Numbers of threads alike.

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
    def threads(groups: Sequence[Group], machine: str) -> set[int]:
        return {group.key.threads for group in groups if group.key.machine == machine}

    machines = _partners({group.key.machine for group in before}, {group.key.machine for group in after})
    return tuple(
        (Place(ours, our_threads), Place(theirs, their_threads))
        for ours, theirs in machines
        for our_threads, their_threads in _partners(threads(before, ours), threads(after, theirs))
    )


def _partners(before: set[_Key], after: set[_Key]) -> list[tuple[_Key, _Key]]:
    """Those that both have; where there is none, the only one of each; else nobody can tell which belong together."""
    if before & after:
        return [(key, key) for key in sorted(before & after)]
    return list(zip(before, after, strict=True)) if len(before) == len(after) == 1 else []


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
