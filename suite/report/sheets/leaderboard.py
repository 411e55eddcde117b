"""The equal-bytes leaderboard: who is fastest within so much device memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.report.contests import Contest, Place, contests, standings
from suite.report.source import Source
from suite.tables.columns import relative
from suite.tables.frames import raw_frame, setting_numbers
from suite.tables.quantities import amount, binary_bytes, count, megabytes, place_words
from suite.tables.settings import cache_size, facts, family_headings
from suite.tables.sheet import Block, Column, Line, Sheet, lines

_LEGEND = (
    "Within so many device bytes, each system with the fastest of its cells that fits, whatever cache ratio or budget "
    "that ran with.",
    "Only systems take part whose every round ended ok, was verified against the reference and offloads; on a GPU the "
    "all-on-device baseline takes part too.",
    "Too close to call: the 95 % interval of the ratio to the first of the place spans 1, or there is none because of "
    "a single round; such systems share a place.",
    "Relative to the first: ratio of samples/s with its 95 % interval, paired by round where the two ran interleaved, "
    "else by Welch's method; [n/a] = a single round has no interval.",
    "Samples/s: geometric mean over rounds. KiB, MiB, GiB = powers of 1024; MB = 1e6 bytes.",
)
_CPU = (
    "RAM over disk on a CPU: what counts as device memory is RAM, and the slow tier is a file on disk; no GPU took "
    "part, and nothing follows for one."
)
_BUDGET: Column[Place] = Column(words="within", show=lambda place: binary_bytes(place.budget_bytes))
COLUMNS: tuple[Column[Place], ...] = (
    Column(words="place", show=lambda place: place_words(place.place, tied=place.tied), text=True),
    Column(words="system", show=lambda place: place.contender.system, text=True),
    Column(words="cache ratio or budget", show=lambda place: cache_size(place.contender.group.cell)),
    Column(words="samples/s", show=lambda place: amount(place.contender.samples_per_s)),
    Column(
        words="relative to the first", show=lambda place: "1" if place.to_first is None else relative(place.to_first)
    ),
    Column(words="rounds", show=lambda place: str(len(place.contender.speeds))),
    Column(words="device MB", show=lambda place: megabytes(place.contender.device_bytes)),
    Column(words="device bytes", show=lambda place: count(place.contender.device_bytes)),
    Column(words="bytes are", show=lambda place: place.contender.basis.value, text=True),
)
"""Of the standings within one budget."""


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """A line as raw numbers. None: the first of a list has no interval relative to itself, nor has a single round."""

    budget_bytes: int
    place: int
    tied: bool
    system: str
    samples_per_s: float
    to_first: float
    to_first_low: float | None
    to_first_high: float | None
    rounds: int
    device_bytes: int
    basis: str

    @classmethod
    def of(cls, place: Place) -> _Numbers:
        entry, ratio = place.contender, place.to_first
        return cls(
            budget_bytes=place.budget_bytes,
            place=place.place,
            tied=place.tied,
            system=entry.system,
            samples_per_s=entry.samples_per_s,
            to_first=1.0 if ratio is None else ratio.value,
            to_first_low=None if ratio is None else ratio.low,
            to_first_high=None if ratio is None else ratio.high,
            rounds=len(entry.speeds),
            device_bytes=entry.device_bytes,
            basis=entry.basis.value,
        )


def leaderboard_sheet(source: Source) -> Sheet | None:
    """A block per contest, a list per budget in it; None where nobody takes part."""
    held = contests(source.groups)
    if not held:
        return None
    standing = [[place for budget in contest.budgets for place in standings(contest, budget)] for contest in held]
    return Sheet(
        name="leaderboard",
        title="Who is fastest within equal device memory",
        legend=_LEGEND,
        blocks=tuple(
            Block(
                heading=heading,
                facts=contest_facts(contest),
                heads=(_BUDGET, *COLUMNS),
                lines=place_lines((_BUDGET, *COLUMNS), found),
            )
            for contest, heading, found in zip(held, contest_headings(held), standing, strict=True)
        ),
        frame=raw_frame(
            [
                setting_numbers(place.contender.group, place.contender.records) | vars(_Numbers.of(place))
                for found in standing
                for place in found
            ],
            _Numbers,
        ),
    )


def contest_headings(held: Sequence[Contest]) -> list[str]:
    """A heading per contest."""
    return family_headings([contest.group for contest in held])


def contest_facts(contest: Contest) -> tuple[str, ...]:
    """What holds for all cells of a contest, whatever their cache size."""
    return ((_CPU,) if contest.group.on_cpu else ()) + facts(contest.groups)


def place_lines(columns: Sequence[Column[Place]], found: Iterable[Place]) -> tuple[Line, ...]:
    """Lines of standings, with the records behind each."""
    return lines(columns, ((place, [run.key for run in place.contender.records]) for place in found))
