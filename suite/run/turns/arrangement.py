"""Which systems take turns with which, in how many processes, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from suite.records.groups import is_baseline
from suite.records.record import Cell, Record
from suite.records.status import Status

AGAIN = " (again)"
"""Ends the name under which the baseline takes turns a second time."""
LONG_TURN = 8
"""Steps of a turn on a CPU where a system works between its steps: it does a small part of that on others' time."""

Isolation = Literal["one process", "own process", "two by two", "alone"]


class MemoryNeed(NamedTuple):
    """Bytes that a system holds, or that there are."""

    host: int
    device: int
    disk: int

    @classmethod
    def of(cls, record: Record) -> MemoryNeed:
        """What a system held in its cell, with the model around it."""
        assert record.measurement is not None
        memory, group = record.measurement.memory, record.measurement.held
        held = memory.host_peak_rss_bytes if group is None else group.limit_bytes
        return cls(
            host=min(held, max(0, memory.host_peak_rss_bytes - memory.host_baseline_rss_bytes)),
            device=memory.device_used_bytes or memory.device_reserved_bytes or 0,
            disk=sum(size for key, size in memory.anatomy_bytes.items() if key.startswith("disk/")),
        )


@dataclass(frozen=True, kw_only=True)
class Participant:
    """Who takes turns.

    Attributes:
        name: The system's, or the baseline's with `AGAIN`.
        record: Of its cell.
        own_process: It is not built in one process with the others.
    """

    name: str
    record: Record
    own_process: bool = False

    @property
    def cell(self) -> Cell:
        """What it was in its cell."""
        return self.record.cell


@dataclass(frozen=True, kw_only=True)
class TimingGroup:
    """Systems that take turns with each other.

    Attributes:
        entrants: The baseline first, if there is one, and its second self behind it.
        way: As their records will say, but for those in a process of their own.
        turns: Of each system after each build.
        steps: Of each turn.
    """

    entrants: tuple[Participant, ...]
    way: Isolation
    turns: int
    steps: int

    @property
    def baseline(self) -> Participant | None:
        """What the others are compared with."""
        first = self.entrants[0]
        return first if is_baseline(first.record.cell.system) else None

    @property
    def on_drive(self) -> bool:
        """Rows are on a drive: systems are built once, and take turns without the MLPs too."""
        return self.entrants[0].cell.host_budget_bytes is not None


def who_takes_turns(records: Iterable[Record]) -> list[Record]:
    """Of the records of one setting and round, those of systems that were measured and compute as no other one here.

    Systems that several processes share take none.
    """
    measured = [(one, one.measurement) for one in records if one.status is Status.OK and one.cell.ranks is None]
    here = {record.cell.system for record, _ in measured}
    return [record for record, found in measured if found is not None and found.computes_as not in here]


def arrange(records: Sequence[Record], room: MemoryNeed) -> list[TimingGroup]:
    """Sort systems into contests: one of all of them if all fit, else each with the baseline, else each alone.

    Those that work between their steps need long turns, so they meet the baseline in a contest of their own. The
    baseline's own times are those of its first contest: beside its second self, where that fits.
    """
    entrants = [
        Participant(name=record.cell.system, record=record, own_process=not _shares(record))
        for record in sorted(records, key=lambda record: not is_baseline(record.cell.system))
    ]
    baseline = entrants.pop(0) if is_baseline(entrants[0].cell.system) else None
    busy = [entrant for entrant in entrants if _needs_long_turns(entrant)]
    calm = [entrant for entrant in entrants if entrant not in busy]
    if baseline is None or not busy or not calm:
        return _arranged(baseline, entrants, room)
    return [*_arranged(baseline, calm, room), *_arranged(baseline, busy, room, twice=False)]


def _arranged(
    baseline: Participant | None, others: Sequence[Participant], room: MemoryNeed, *, twice: bool = True
) -> list[TimingGroup]:
    """Contests of these; `twice`: with the baseline's second self, where that fits."""
    first = [] if baseline is None else [baseline]
    if baseline is not None and twice:
        first.append(replace(baseline, name=baseline.name + AGAIN))
    everyone = [*first, *others]
    if len(everyone) > 1 and _fit(everyone, room):
        return [_contest(everyone, "one process")]
    if baseline is not None and others and all(_fit([baseline, entrant], room) for entrant in others):
        contests = [_contest([baseline, entrant], "two by two") for entrant in others]
        return [_contest(first, "two by two"), *contests] if twice and _fit(first, room) else contests
    alone = [baseline, *others] if baseline is not None and twice else others
    return [_contest([entrant], "alone") for entrant in alone]


def _needs_long_turns(entrant: Participant) -> bool:
    measured = entrant.record.measurement
    return measured is not None and measured.busy_between_steps and entrant.cell.turn_steps < LONG_TURN


def _shares(record: Record) -> bool:
    on_drive = record.cell.host_budget_bytes is not None  # each is held to a budget of its own
    return not on_drive and (record.measurement is None or record.measurement.shares_process)


def _fit(entrants: Sequence[Participant], room: MemoryNeed) -> bool:
    """Whether there is room for all at once."""
    needs = [MemoryNeed.of(entrant.record) for entrant in entrants]
    return all(sum(wanted) <= there for *wanted, there in zip(*needs, room, strict=True))


def _contest(entrants: Sequence[Participant], way: Isolation) -> TimingGroup:
    cell = entrants[0].cell
    steps, turns = cell.turn_steps, cell.turns
    if any(_needs_long_turns(entrant) for entrant in entrants):
        # of the steps that the stream is known to have, those that do not warm up
        room = max(cell.steps, cell.warmup_steps + turns * steps) - cell.warmup_steps
        steps, turns = min(LONG_TURN, room), max(1, min(2 * turns * steps, room) // LONG_TURN)
    return TimingGroup(entrants=tuple(entrants), way=way, turns=turns, steps=steps)


def balanced_orders(systems: int) -> list[tuple[int, ...]]:
    """Orders to go through one after another, so that no system gains by its place or by who went before it.

    A Williams design (1949): every system takes every place equally often, and follows every other one equally often.
    There are as many orders as systems, twice as many where their number is odd.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(systems)]
    orders = [tuple((step + start) % systems for step in zigzag) for start in range(systems)]
    return orders + [order[::-1] for order in orders] if systems % 2 and systems > 1 else orders
