"""Timing groups: which systems are timed against each other, in how many processes, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from suite.records.groups import base_name, is_baseline
from suite.records.measured import Isolation
from suite.records.record import Cell, Measurement, Record, Status
from suite.records.scales import LEAD_STEPS

BASELINE_REPEAT = " (again)"
"""Suffix of the participant name of the baseline's repeat."""
TURN_S = 0.1
"""Least seconds of a turn at the first system's pace alone, if four times `turn_steps` suffice: a stall of the machine,
some tens of milliseconds, is then a part of a turn, and short steps are measured for as long as others."""

_SHORT_WARMUP = 2
"""Steps of a warm-up behind which nothing has settled, so that a pace alone tells nothing."""


class MemoryNeed(NamedTuple):
    """Bytes that a system needs, or that are available."""

    host: int
    device: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A system that is timed.

    Attributes:
        name: The system's name, or the baseline's with `BASELINE_REPEAT`.
        record: Record of its cell, `ok`.
        own_process: It runs in a process of its own, not in that of the others.
    """

    name: str
    record: Record
    own_process: bool = False

    @property
    def cell(self) -> Cell:
        """The system's cell."""
        return self.record.cell

    @property
    def measurement(self) -> Measurement:
        """Measurement of its cell."""
        assert self.record.measurement is not None
        return self.record.measurement

    @property
    def disturbs_others(self) -> bool:
        """Whether it works on their cores between its steps, on threads of its own or in the page cache."""
        return self.measurement.busy_between_steps and self.cell.device == "cpu" and not self.measurement.held

    @property
    def memory_need(self) -> MemoryNeed:
        """Peak memory of the system and its model in its cell."""
        memory, held = self.measurement.memory, self.measurement.held
        limit = memory.host_peak_rss_bytes if held is None else held.limit_bytes
        return MemoryNeed(
            host=min(limit, max(0, memory.host_peak_rss_bytes - memory.host_baseline_rss_bytes)),
            device=memory.device_used_bytes or memory.device_reserved_bytes or 0,
            disk=sum(size for key, size in memory.anatomy_bytes.items() if key.startswith("disk/")),
        )


@dataclass(frozen=True, kw_only=True)
class TimingGroup:
    """Systems that are timed in alternation.

    Attributes:
        participants: The baseline first, if there is one, followed by its repeat.
        isolation: Isolation for their records, except for participants in a process of their own.
        turns: Turns of each system after each build: those of all builds together are whole designs of
            `balanced_orders`, where the stream suffices.
        steps: Timed steps of each turn.
    """

    participants: tuple[Participant, ...]
    isolation: Isolation
    turns: int
    steps: int

    @property
    def baseline(self) -> Participant | None:
        """The baseline that the others are compared with; None if the group has none."""
        first = self.participants[0]
        return first if is_baseline(first.cell.system) else None

    @property
    def on_drive(self) -> bool:
        """Whether rows are on a drive: then systems are built once."""
        return self.participants[0].cell.host_budget_bytes is not None

    @property
    def alone_runs(self) -> int:
        """Runs of `steps` steps that each system trains after each build, each right behind one of its turns.

        None with rows on a drive: a turn there is a run alone, in an own process. None where the warm-up is short.
        """
        return 0 if self.on_drive or self.participants[0].cell.warmup_steps <= _SHORT_WARMUP else 3

    @property
    def alone_behind(self) -> tuple[int, ...]:
        """The turn, from 0, that each of the runs alone stands behind: far apart, as is what slows a machine down."""
        return tuple((2 * run + 1) * self.turns // (2 * self.alone_runs) for run in range(self.alone_runs))

    @property
    def stream_steps(self) -> int:
        """Steps of each system after a build: warm-up, runs alone, turns of the whole and of the embedding step."""
        cell = self.participants[0].cell
        turns = (2 * cell.builds if self.on_drive else 2) * self.turns
        return cell.warmup_steps + (turns + self.alone_runs) * (LEAD_STEPS + self.steps)


def who_takes_turns(records: Iterable[Record]) -> list[Record]:
    """Records of one setting and round whose systems are to be timed: measured, and no repeat of another's kernel.

    Sharded systems are not timed, nor is anything on a virtual device, which has no speed.
    """
    timeable = [one for one in records if one.cell.ranks is None and not one.on_virtual_device]
    measured = [(one, one.measurement) for one in timeable if one.status is Status.OK]
    here = {record.cell.system for record, _ in measured}
    return [record for record, found in measured if found is not None and found.same_kernel_as not in here]


def arrange(records: Sequence[Record], room: MemoryNeed) -> list[TimingGroup]:
    """Form timing groups: one of all systems if all fit into memory, else the baseline and as many others as fit.

    Where the baseline does not fit with each of them, each is alone. On a CPU systems that work between their steps are
    timed against the baseline in groups of their own, each in a process of its own. The baseline's own times are those
    of its first group: with its repeat, if that fits.
    """
    others = [Participant(name=one.cell.system, record=one, own_process=_needs_own_process(one)) for one in records]
    others.sort(key=lambda one: not is_baseline(one.cell.system))
    baseline = others.pop(0) if is_baseline(others[0].cell.system) else None
    busy = [replace(one, own_process=True) for one in others if one.disturbs_others]
    calm = [one for one in others if not one.disturbs_others]
    if not busy:
        return _arranged(baseline, calm, room)
    apart = None if baseline is None else replace(baseline, own_process=True)
    if not calm:
        return _arranged(apart, busy, room)
    return [*_arranged(baseline, calm, room), *_arranged(apart, busy, room, twice=False)]


def _arranged(
    baseline: Participant | None, others: Sequence[Participant], room: MemoryNeed, *, twice: bool = True
) -> list[TimingGroup]:
    """Timing groups of these participants; `twice`: with the baseline's repeat, if that fits."""
    first = [] if baseline is None else [baseline]
    again = [replace(one, name=one.name + BASELINE_REPEAT) for one in first if twice]
    if len([*first, *again, *others]) > 1 and _fit([*first, *again, *others], room):
        return [_group([*first, *again, *others], "one process")]
    if first and others and all(_fit([*first, one], room) for one in others):
        again = again if _fit([*first, *again], room) else []
        return [_group(members, "several groups") for members in _packed(first, [*again, *others], room)]
    return [_group([one], "alone") for one in ([*first, *others] if twice else others)]


def _packed(first: Sequence[Participant], others: Sequence[Participant], room: MemoryNeed) -> list[list[Participant]]:
    """Groups that begin with `first`, each of as many others as fit: different systems meet before their variants."""
    named = [base_name(one.cell.system) for one in others]
    variants = sorted(range(len(others)), key=lambda place: named[:place].count(named[place]))
    groups: list[list[Participant]] = []
    for one in (others[place] for place in variants):
        home = next((group for group in groups if _fit([*group, one], room)), None)
        if home is None:
            groups.append([*first, one])
        else:
            home.append(one)
    return groups


def _needs_own_process(record: Record) -> bool:
    on_drive = record.cell.host_budget_bytes is not None  # each has a memory limit of its own
    return on_drive or (record.measurement is not None and not record.measurement.shares_process)


def _fit(participants: Sequence[Participant], room: MemoryNeed) -> bool:
    """Whether the memory suffices for all at once."""
    needs = [one.memory_need for one in participants]
    return all(sum(wanted) <= there for *wanted, there in zip(*needs, room, strict=True))


def _group(participants: Sequence[Participant], isolation: Isolation) -> TimingGroup:
    cell, timing = participants[0].cell, participants[0].measurement.timing
    least, turns = cell.turn_steps, cell.turns
    pace = (timing and timing.alone_steps_per_s) or 0.0
    steps = max(least, min(4 * least, math.ceil(TURN_S * pace)))
    # turns after which, over all builds together, every order was used equally often
    design = len(balanced_orders(len(participants)))
    design //= math.gcd(design, cell.builds)
    turns = design * max(1, round(turns / design))
    group = TimingGroup(participants=tuple(participants), isolation=isolation, turns=turns, steps=steps)
    stream = participants[0].measurement.epoch_samples // cell.batch_size
    while group.stream_steps > stream and (group.turns > 1 or group.steps > 1):
        # a small dataset: fewer designs, then shorter turns, and at last a part of a design
        if group.turns <= design and group.steps > 1:
            group = replace(group, steps=group.steps - 1)
        else:
            group = replace(group, turns=max(1, group.turns - (design if group.turns > design else 1)))
    return group


def balanced_orders(systems: int) -> list[tuple[int, ...]]:
    """Orders of systems, to be used in sequence, in which position and predecessor favour no system.

    A Williams design (1949): every system has every position equally often, and follows every other one equally often.
    There are as many orders as systems, twice as many if their number is odd.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(systems)]
    orders = [tuple((step + start) % systems for step in zigzag) for start in range(systems)]
    return orders + [order[::-1] for order in orders] if systems % 2 and systems > 1 else orders
