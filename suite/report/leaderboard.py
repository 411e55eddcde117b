"""The equal-bytes leaderboard: who is fastest within so much device memory, whatever cache ratio or budget cells had.

A cache ratio gives systems unlike bytes (indexes, staging, state); device memory is what a user has. So cells of one
stream, model and machine meet here at every cache size, and each system enters a budget with the fastest of its cells
that fits. Places rest on ratios: of systems that took turns with each other, else through the baseline of each.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suite.records.groups import BASELINE, Group, is_baseline
from suite.tables.columns import RATIO
from suite.tables.formatting import binary_bytes, count, megabytes, relative
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import cache_size, caption, headings, on_drive, sweeps
from suite.tables.sheet import Column, Sheet, Table
from suite.tables.statistics import Estimate, met, places, relative_speed

_CPU: Final = (
    "RAM over disk on a CPU: what counts as device memory is RAM, and the slow tier is a file on disk; no GPU took "
    "part, and nothing follows for one."
)
COLUMNS: Final = (
    Column(
        words="within", name="budget_bytes", show=binary_bytes, text=True, repeats=True,
        definition="device bytes: rows, optimizer state, index and staging, by the system's own account. Each system "
        "enters with the fastest of its cells that fits; every round of it ended ok, was verified, was timed and "
        "offloads. On a GPU the all-on-device baseline takes part too.",
    ),
    Column(
        words="place", name="place",
        definition="a system shares it with the first of the place if the interval of their ratio contains 1 or does "
        "not exist, or the ratio lies within the noise.",
    ),
    Column(words="system", name="system", text=True, repeats=True),
    Column(words="cache ratio or budget", name="size", text=True),
    RATIO,
    Column(words="relative to the first", name="to_first", show=relative, noisy=True),
    Column(
        words="compared with the first", name="compared", text=True,
        definition=f"cells of different sizes never took turns: they are compared through their ratios to {BASELINE}.",
    ),
    Column(words="device MB", name="device_bytes", show=megabytes),
    Column(words="device bytes", name="device_bytes", show=count),
)  # fmt: skip


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
    if not row.sound or any(run.turns is None for run in row.records):
        return False
    return bool(row.offloads) or (is_baseline(row.system) and row.cell.device == "cuda")


def standings(leaderboard: Leaderboard, budget_bytes: int) -> list[dict[str, Any]]:
    """Rank systems within so many device bytes, each with its fastest cell that fits: a line each.

    A system too close to call with the first of a place shares that place.
    """
    # ratios, which slow spells of the machine do not move, where all have one
    by_ratio = all(row.ratio is not None for row in leaderboard.rows)

    def speed(row: Row) -> float:
        return (row.ratio.value if by_ratio and row.ratio else row.samples_per_s) or 0.0

    best: dict[str, Row] = {}
    for row in leaderboard.rows:
        known = best.get(row.system)
        if (row.device_bytes or 0) <= budget_bytes and (known is None or speed(row) > speed(known)):
            best[row.system] = row
    order = sorted(best.values(), key=lambda row: (-speed(row), row.system))
    shared = places(order, _apart)
    return [
        _line(row, order[0], budget_bytes, place, tied=shared.count(place) > 1)
        for place, row in zip(shared, order, strict=True)
    ]


def _line(row: Row, first: Row, budget_bytes: int, place: int, *, tied: bool) -> dict[str, Any]:
    """Raw numbers by column."""
    to_first: Estimate | None = Estimate(value=1.0, low=None, high=None)
    compared = None
    if row is not first:
        to_first = relative_speed(row.records, first.records)
        compared = "in turns" if met(row.records, first.records) else f"through {BASELINE}"
    return {
        **row.line("system", "builds", "noise", "ratio", budget_bytes=budget_bytes, place=place, tied=tied),
        "to_first": to_first,
        "compared": compared if to_first is not None else None,
        "size": cache_size(row.cell),
        "device_bytes": row.device_bytes or 0,
        "printed": {"place": f"{place}, too close to call"} if tied else {},
        "row": row,
    }


def _apart(first: Row, other: Row) -> Estimate | None:
    """Their ratio; None where it lies within the noise, so that it is no difference."""
    ratio = relative_speed(first.records, other.records)
    noise = max(first.noise or 0.0, other.noise or 0.0)
    return None if ratio is None or abs(ratio.value - 1) <= noise else ratio


def leaderboard_sheet(groups: Sequence[Group]) -> Sheet:
    """A table per family of cache sizes in which somebody takes part, a list per budget in it."""
    boards = leaderboards(groups)
    titles = headings([one.groups[0] for one in boards], sized=False)
    tables = [
        Table(
            heading=heading,
            caption=f"{caption(one.groups)} {_CPU if one.groups[0].on_cpu else ''}".strip(),
            columns=COLUMNS,
            lines=tuple(line for budget in one.budgets for line in standings(one, budget)),
        )
        for one, heading in zip(boards, titles, strict=True)
    ]
    return Sheet(name="leaderboard", title="Who is fastest within equal device memory", tables=tuple(tables))
