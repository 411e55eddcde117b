"""Who is fastest within so much device memory, whatever cache ratio or budget the cells ran with.

A cache ratio gives systems unlike bytes (indexes, staging, state); device memory is what a user has. So cells of one
stream, model and machine meet here at every cache size, and each system enters a budget with the fastest of its cells
that fits. Places rest on ratios: of systems that took turns with each other, else through the baseline of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.record import Record
from suite.tables.rows import Row, merged_rows, noise_floor
from suite.tables.settings import on_drive, sweeps
from suite.tables.statistics import Estimate, places, relative_speed, takes_part


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A system at one cache size: all its rounds are ok, verified, timed and offloading (or the baseline, on CUDA).

    `noise` is that of its group, as a share; None: not known.
    """

    group: Group
    row: Row
    records: tuple[Record, ...]
    noise: float | None

    @property
    def system(self) -> str:
        """Its name."""
        return self.row.system

    @property
    def size(self) -> int:
        """Device bytes by its own account; 0: none are on the device."""
        return self.row.device_bytes or 0

    def raced(self, other: Contender) -> bool:
        """Whether the two took turns with each other."""
        mine, theirs = ({run.turns.contest for run in one.records if run.turns} for one in (self, other))
        return not mine.isdisjoint(theirs)

    def over(self, other: Contender) -> Estimate | None:
        """Speed relative to another: in their turns, else by their ratios to the baseline; None: neither is known."""
        return relative_speed(self.records, other.records)


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The contenders of groups that differ in size alone, in order of device bytes, then of name."""

    groups: tuple[Group, ...]
    contenders: tuple[Contender, ...]

    @property
    def budgets(self) -> tuple[int, ...]:
        """Powers of two, in bytes, from the first that lets a contender in to the first that lets all in."""
        sizes = [contender.size for contender in self.contenders if contender.size] or [1]
        first, last = (math.ceil(math.log2(size)) for size in (min(sizes), max(sizes)))
        return tuple(2**power for power in range(first, last + 1))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A system's place within a budget, from 1; one too close to call with the `first` of a place shares that place."""

    budget_bytes: int
    place: int
    tied: bool
    contender: Contender
    first: Contender

    @property
    def to_first(self) -> Estimate | None:
        """Speed relative to the first of the list; None for the first itself, and where the two were not compared."""
        return None if self.contender is self.first else self.contender.over(self.first)


def leaderboards(groups: Iterable[Group]) -> tuple[Leaderboard, ...]:
    """The leaderboards of a report, in order of its groups; sweeps in which nobody takes part give none.

    Rows on a drive have a host budget, and tables of their own: none of them is here.
    """
    made = []
    for sweep in (one for one in sweeps(groups) if not on_drive(one[0])):
        contenders = [contender for group in sweep for contender in _contenders(group)]
        if contenders:
            contenders.sort(key=lambda contender: (contender.size, contender.system))
            made.append(Leaderboard(groups=sweep, contenders=tuple(contenders)))
    return tuple(made)


def standings(leaderboard: Leaderboard, budget_bytes: int) -> tuple[Place, ...]:
    """Who is fastest within so many device bytes, each system with its fastest cell that fits."""
    speed = _speed(leaderboard.contenders)
    best: dict[str, Contender] = {}
    for contender in leaderboard.contenders:
        known = best.get(contender.system)
        if contender.size <= budget_bytes and (known is None or speed(contender) > speed(known)):
            best[contender.system] = contender
    order = sorted(best.values(), key=lambda contender: (-speed(contender), contender.system))
    shared = places(order, _apart)
    return tuple(
        Place(budget_bytes=budget_bytes, place=place, tied=shared.count(place) > 1, contender=one, first=order[0])
        for place, one in zip(shared, order, strict=True)
    )


def _apart(first: Contender, other: Contender) -> Estimate | None:
    """Their ratio; None where it lies within the noise, so that it is no difference."""
    ratio = first.over(other)
    noise = max(first.noise or 0.0, other.noise or 0.0)
    return None if ratio is None or abs(ratio.value - 1) <= noise else ratio


def _speed(contenders: Sequence[Contender]) -> Callable[[Contender], float]:
    """What contenders are ordered by: ratios, which slow spells of the machine do not move, where all have one."""
    if all(contender.row.ratio is not None for contender in contenders):
        return lambda contender: contender.row.ratio or 0.0
    return lambda contender: contender.row.samples_per_s or 0.0


def _contenders(group: Group) -> Iterator[Contender]:
    rows = merged_rows(group)
    noise = noise_floor(rows)
    for row in rows:
        runs = () if row.again else group.rounds_by_system[row.system]
        if runs and all(takes_part(run) for run in runs):
            yield Contender(group=group, row=row, records=runs, noise=noise)
