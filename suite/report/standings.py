"""Who is fastest within so much device memory, whatever cache ratio or budget the cells ran with.

A cache ratio gives systems unlike bytes (indexes, staging, state); device memory is what a user has. So cells of one
stream, model and machine meet here at every cache size, and each system enters a budget with the fastest of its cells
that fits. Places rest on ratios: of systems that took turns with each other, else through the baseline of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.record import Record
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import on_drive, sweeps
from suite.tables.statistics import Estimate, places, relative_speed, takes_part


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A system at one cache size: all its rounds are ok, verified, timed and offloading (or the baseline, on CUDA)."""

    group: Group
    row: Row
    records: tuple[Record, ...]

    @property
    def system(self) -> str:
        """Its name."""
        return self.row.system

    @property
    def size(self) -> int:
        """Device bytes by its own account; 0: none are on the device."""
        return self.row.device_bytes or 0

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
    for sweep in sweeps(group for group in groups if not on_drive(group)):
        contenders = [
            Contender(group=group, row=row, records=runs)
            for group in sweep
            for row in merged_rows(group)
            if not row.again and all(map(takes_part, runs := group.rounds_by_system[row.system]))
        ]
        if contenders:
            contenders.sort(key=lambda contender: (contender.size, contender.system))
            made.append(Leaderboard(groups=sweep, contenders=tuple(contenders)))
    return tuple(made)


def standings(leaderboard: Leaderboard, budget_bytes: int) -> tuple[Place, ...]:
    """Who is fastest within so many device bytes, each system with its fastest cell that fits."""
    # ratios, which slow spells of the machine do not move, where all have one
    by_ratio = all(contender.row.ratio is not None for contender in leaderboard.contenders)

    def speed(contender: Contender) -> float:
        return (contender.row.ratio if by_ratio else contender.row.samples_per_s) or 0.0

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
    noise = max(first.row.noise or 0.0, other.row.noise or 0.0)
    return None if ratio is None or abs(ratio.value - 1) <= noise else ratio
