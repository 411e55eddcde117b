"""The equal-bytes leaderboard: who is fastest within so much device memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.records.groups import BASELINE
from suite.report.source import Source
from suite.report.standings import Leaderboard, Place, leaderboards, standings
from suite.tables.columns import relative
from suite.tables.quantities import MISSING, binary_bytes, count, megabytes, place_words
from suite.tables.settings import cache_size, details, facts, family_headings
from suite.tables.sheet import Block, Column, Line, Sheet, lines, raw_frame, setting_numbers

IN_TURNS, THROUGH_BASELINE = "in turns", f"through {BASELINE}"
_LEGEND = (
    "Within so many device bytes, each system with the fastest of its cells that fits, whatever cache ratio or budget "
    "that ran with. Device bytes: rows, optimizer state, index and staging, by the system's own account.",
    "Only systems take part whose every round ended ok, was verified against the reference, was timed and offloads; on "
    "a GPU the all-on-device baseline takes part too.",
    "Cells of one cache size took turns with each other. Cells of different sizes never did: they are compared through "
    f"their ratios to {BASELINE}, which took turns with each.",
    "Too close to call: the ratio to the first of the place lies within the noise, or its 95 % interval spans 1 or "
    "does not exist; such systems share a place.",
    "KiB, MiB, GiB = powers of 1024; MB = 1e6 bytes; n/a = does not exist or is not known.",
)
_CPU = (
    "RAM over disk on a CPU: what counts as device memory is RAM, and the slow tier is a file on disk; no GPU took "
    "part, and nothing follows for one."
)


def _how(place: Place) -> str | None:
    """How a system was compared with the first; None for the first itself, and where the two were not."""
    if place.contender is place.first or place.to_first is None:
        return None
    return IN_TURNS if place.contender.raced(place.first) else THROUGH_BASELINE


_BUDGET: Column[Place] = Column(words="within", show=lambda place: binary_bytes(place.budget_bytes))
COLUMNS: tuple[Column[Place], ...] = (
    Column(words="place", show=lambda place: place_words(place.place, tied=place.tied), text=True),
    Column(words="system", show=lambda place: place.contender.system, text=True),
    Column(words="cache ratio or budget", show=lambda place: cache_size(place.contender.group.cell)),
    Column(words=f"vs {BASELINE}", show=lambda place: relative(place.contender.row.relative, place.contender.noise)),
    Column(
        words="relative to the first",
        show=lambda place: "1" if place.contender is place.first else relative(place.to_first, place.contender.noise),
    ),
    Column(words="compared with the first", show=lambda place: _how(place) or MISSING, text=True),
    Column(words="device MB", show=lambda place: megabytes(place.contender.size)),
    Column(words="device bytes", show=lambda place: count(place.contender.size)),
)
"""Of the standings within one budget."""


def _numbers(place: Place) -> dict[str, object]:
    """A line as raw numbers. None: does not exist, as an interval of the first relative to itself, or is not known."""
    row, to_first = place.contender.row, place.to_first
    relative_to = 1.0 if place.contender is place.first else to_first and to_first.value
    return {
        **{name: getattr(place, name) for name in ("budget_bytes", "place", "tied")},
        **{name: getattr(row, name) for name in ("system", "ratio", "ratio_low", "ratio_high")},
        "to_first": relative_to,
        "to_first_low": to_first and to_first.low,
        "to_first_high": to_first and to_first.high,
        "compared": _how(place),
        "builds": row.builds,
        "device_bytes": place.contender.size,
    }


def leaderboard_sheet(source: Source) -> Sheet | None:
    """A block per family of cache sizes, a list per budget in it; None where nobody takes part."""
    held = leaderboards(source.groups)
    if not held:
        return None
    standing = [[place for budget in one.budgets for place in standings(one, budget)] for one in held]
    return Sheet(
        name="leaderboard",
        title="Who is fastest within equal device memory",
        legend=_LEGEND,
        blocks=tuple(
            Block(
                heading=heading,
                facts=leaderboard_facts(one),
                heads=(_BUDGET, *COLUMNS),
                lines=place_lines((_BUDGET, *COLUMNS), found),
            )
            for one, heading, found in zip(held, leaderboard_headings(held), standing, strict=True)
        ),
        frame=raw_frame(
            [
                setting_numbers(place.contender.group, place.contender.records) | _numbers(place)
                for found in standing
                for place in found
            ]
        ),
    )


def leaderboard_headings(held: Sequence[Leaderboard]) -> list[str]:
    """A heading per leaderboard."""
    return family_headings([one.groups[0] for one in held])


def leaderboard_facts(leaderboard: Leaderboard) -> tuple[str, ...]:
    """What holds for all its cells, whatever their cache size."""
    groups = leaderboard.groups
    return (*((_CPU,) if groups[0].on_cpu else ()), *facts(groups), *details(groups))


def place_lines(columns: Sequence[Column[Place]], found: Iterable[Place]) -> tuple[Line, ...]:
    """Lines of standings, with the records behind each."""
    return lines(columns, ((place, [run.key for run in place.contender.records]) for place in found))
