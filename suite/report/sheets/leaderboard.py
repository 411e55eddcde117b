"""The equal-bytes leaderboard: who is fastest within so much device memory."""

from collections.abc import Sequence
from typing import Any

from suite.records.groups import BASELINE, Group
from suite.report.standings import Place, leaderboards, standings
from suite.tables.quantities import MISSING, binary_bytes, count, megabytes, relative
from suite.tables.settings import cache_size, details, facts, headings
from suite.tables.sheet import Column, Sheet, block, raw_frame, setting_numbers
from suite.tables.statistics import met, spread_out

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
    if place.to_first is None:
        return None
    return "in turns" if met(place.row.records, place.first.records) else f"through {BASELINE}"


def _to_first(place: Place) -> str:
    return "1" if place.row is place.first else relative(place.to_first, place.row.noise)


COLUMNS: tuple[Column[Place], ...] = (
    Column(words="within", show=lambda place: binary_bytes(place.budget_bytes)),
    Column(words="place", show=lambda place: f"{place.place}{', too close to call' if place.tied else ''}", text=True),
    Column(words="system", show=lambda place: place.row.system, text=True),
    Column(words="cache ratio or budget", show=lambda place: cache_size(place.row.cell)),
    Column(words=f"vs {BASELINE}", show=lambda place: relative(place.row.relative, place.row.noise)),
    Column(words="relative to the first", show=_to_first),
    Column(words="compared with the first", show=lambda place: _how(place) or MISSING, text=True),
    Column(words="device MB", show=lambda place: megabytes(place.row.device_bytes or 0)),
    Column(words="device bytes", show=lambda place: count(place.row.device_bytes or 0)),
)


def leaderboard_sheet(groups: Sequence[Group]) -> Sheet:
    """A block per family of cache sizes in which somebody takes part, a list per budget in it."""
    held = leaderboards(groups)
    titles = headings([one.groups[0] for one in held], sized=False)
    standing = [[place for budget in one.budgets for place in standings(one, budget)] for one in held]
    blocks = [
        block(
            COLUMNS,
            [(place, place.row.records) for place in found],
            heading=heading,
            facts=(*((_CPU,) if one.groups[0].on_cpu else ()), *facts(one.groups), *details(one.groups)),
        )
        for one, heading, found in zip(held, titles, standing, strict=True)
    ]
    numbers = [setting_numbers(place.row.records) | _numbers(place) for found in standing for place in found]
    return Sheet(
        name="leaderboard",
        title="Who is fastest within equal device memory",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers),
    )


def _numbers(place: Place) -> dict[str, Any]:
    """A line as raw numbers. None: does not exist, as an interval of the first relative to itself, or is not known."""
    row = place.row
    return {
        **{name: getattr(place, name) for name in ("budget_bytes", "place", "tied")},
        "system": row.system,
        **spread_out("ratio", row.relative),
        **spread_out("to_first", place.to_first),
        **({"to_first": 1.0} if row is place.first else {}),
        "compared": _how(place),
        "builds": row.builds,
        "device_bytes": row.device_bytes or 0,
    }
