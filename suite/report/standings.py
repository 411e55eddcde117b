"""Who is fastest within so much device memory, whatever cache ratio or budget the cells ran with.

A cache ratio gives systems unlike bytes (indexes, staging, state); device memory is what a user has. So cells of one
stream, model and machine meet here at every cache size, and each system enters a budget with the fastest of its cells
that fits. Places rest on ratios: of systems that took turns with each other, else through the baseline of each.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from suite.records.groups import Group, is_baseline
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import on_drive, sweeps
from suite.tables.statistics import Estimate, places, relative_speed


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The rows that take part of groups that differ in size alone, in order of device bytes, then of name."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]

    @property
    def budgets(self) -> tuple[int, ...]:
        """Powers of two, in bytes, from the first that lets a row in to the first that lets all in."""
        sizes = [row.device_bytes for row in self.rows if row.device_bytes] or [1]
        first, last = (math.ceil(math.log2(size)) for size in (min(sizes), max(sizes)))
        return tuple(2**power for power in range(first, last + 1))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A system's place within a budget, from 1; one too close to call with the first of a place shares that place.

    Attributes:
        first: The first of the list.
        to_first: Speed relative to it; None for the first itself, and where the two were not compared.
    """

    budget_bytes: int
    place: int
    tied: bool
    row: Row
    first: Row
    to_first: Estimate | None


def leaderboards(groups: Iterable[Group]) -> tuple[Leaderboard, ...]:
    """The leaderboards of a report, in order of its groups; sweeps in which nobody takes part give none.

    Rows on a drive have a host budget, and tables of their own: none of them is here.
    """
    made = []
    for sweep in sweeps(group for group in groups if not on_drive(group)):
        rows = [row for group in sweep for row in merged_rows(group) if takes_part(row)]
        if rows:
            rows.sort(key=lambda row: (row.device_bytes or 0, row.system))
            made.append(Leaderboard(groups=sweep, rows=tuple(rows)))
    return tuple(made)


def takes_part(row: Row) -> bool:
    """Whether a row may be ranked: all rounds ok, verified, exact, timed, and offloading (or the baseline, on CUDA)."""
    if row.again or not row.sound or any(run.turns is None for run in row.records):
        return False
    return bool(row.offloads) or (is_baseline(row.system) and row.cell.device == "cuda")


def standings(leaderboard: Leaderboard, budget_bytes: int) -> tuple[Place, ...]:
    """Who is fastest within so many device bytes, each system with its fastest cell that fits."""
    # ratios, which slow spells of the machine do not move, where all have one
    by_ratio = all(row.ratio is not None for row in leaderboard.rows)

    def speed(row: Row) -> float:
        return (row.ratio if by_ratio else row.samples_per_s) or 0.0

    best: dict[str, Row] = {}
    for row in leaderboard.rows:
        known = best.get(row.system)
        if (row.device_bytes or 0) <= budget_bytes and (known is None or speed(row) > speed(known)):
            best[row.system] = row
    order = sorted(best.values(), key=lambda row: (-speed(row), row.system))
    shared = places(order, _apart)
    return tuple(
        Place(
            budget_bytes=budget_bytes,
            place=place,
            tied=shared.count(place) > 1,
            row=row,
            first=order[0],
            to_first=None if row is order[0] else relative_speed(row.records, order[0].records),
        )
        for place, row in zip(shared, order, strict=True)
    )


def _apart(first: Row, other: Row) -> Estimate | None:
    """Their ratio; None where it lies within the noise, so that it is no difference."""
    ratio = relative_speed(first.records, other.records)
    noise = max(first.noise or 0.0, other.noise or 0.0)
    return None if ratio is None or abs(ratio.value - 1) <= noise else ratio
