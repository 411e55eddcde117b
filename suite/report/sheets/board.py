"""The equal-bytes leaderboard as a sheet: who is fastest within so much device memory."""

from __future__ import annotations

from collections.abc import Sequence

from suite.report.sheets.blocks import (
    cache_size,
    count,
    distinction,
    raw_frame,
    record_keys,
    relative,
    setting_numbers,
    told_apart,
)
from suite.report.sheets.leaderboard import Contest, Place, contests, standings
from suite.report.sheets.sheet import Block, Head, Line, Sheet
from suite.report.source import Source
from suite.tables.quantities import amount, megabytes
from suite.tables.sections import facts, frequencies, heading, version

_HEADS = (
    Head(words="within"),
    Head(words="place", text=True),
    Head(words="system", text=True),
    Head(words="cache ratio or budget"),
    Head(words="samples/s"),
    Head(words="relative to the first"),
    Head(words="rounds"),
    Head(words="device MB"),
    Head(words="device bytes"),
    Head(words="bytes are", text=True),
)
_LEGEND = (
    "Within so many device bytes, each system with the fastest of its cells that fits, whatever cache ratio or budget "
    "that ran with.",
    "Only systems take part whose every round ended ok, was verified against the reference and offloads; on a GPU the "
    "all-on-device baseline takes part too.",
    "Too close to call: the 95 % interval of the ratio to the next faster one spans 1, or there is none because of a "
    "single round; such systems share a place.",
    "Relative to the first: ratio of samples/s with its 95 % interval, paired by round where the two ran interleaved, "
    "else by Welch's method; [n/a] = a single round has no interval.",
    "Samples/s: geometric mean over rounds. KiB, MiB, GiB = powers of 1024; MB = 1e6 bytes.",
)
_CPU = (
    "RAM over disk on a CPU: what counts as device memory is RAM, and the slow tier is a file on disk; no GPU took "
    "part, and nothing follows for one."
)
_COLUMNS = {
    "budget_bytes": "Int64",
    "place": "Int64",
    "tied": "boolean",
    "system": "object",
    "samples_per_s": "Float64",
    "to_first": "Float64",
    "to_first_low": "Float64",
    "to_first_high": "Float64",
    "rounds": "Int64",
    "device_bytes": "Int64",
    "basis": "object",
}


def leaderboard_sheet(source: Source) -> Sheet | None:
    """A block per contest, a list per budget in it; None where nobody takes part."""
    held = contests(source.groups)
    if not held:
        return None
    return Sheet(
        name="leaderboard",
        title="Who is fastest within equal device memory",
        legend=_LEGEND,
        blocks=tuple(_block(contest, heading) for contest, heading in zip(held, contest_headings(held), strict=True)),
        frame=raw_frame(
            [
                _numbers(budget, place)
                for contest in held
                for budget in contest.budgets
                for place in standings(contest, budget)
            ],
            _COLUMNS,
        ),
    )


def contest_headings(held: Sequence[Contest]) -> list[str]:
    """A heading per contest."""
    groups = [contest.group for contest in held]
    return told_apart([heading(group) for group in groups], map(distinction, groups))


def binary_size(size: int) -> str:
    """Bytes as a budget is written: `16 MiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, size.bit_length() - 1) // 10)
    return f"{size / 1024**power:g} {units[power]}"


def _block(contest: Contest, heading: str) -> Block:
    return Block(
        heading=heading,
        facts=_facts(contest),
        heads=_HEADS,
        lines=tuple(
            Line(cells=_cells(budget, place), keys=record_keys(place.contender.records))
            for budget in contest.budgets
            for place in standings(contest, budget)
        ),
    )


def _facts(contest: Contest) -> tuple[str, ...]:
    """What holds for all cells of a contest, whatever their cache size."""
    group, cell = contest.group, contest.group.cell
    known = dict(facts(group))
    versions = dict.fromkeys(version(record) for entry in contest.contenders for record in entry.records)
    several = "several, run them again to compare alike: " if len(versions) > 1 else ""
    found = (
        f"Measured on: {known['Measured on']}",
        f"Data: {known['Data']}",
        f"Training: {cell.optimizer}, lr {cell.lr:g}, eps {cell.eps:g}, batch {cell.batch_size:,}, "
        f"dim {cell.embedding_dim}, seed {cell.seed}{frequencies(group)}",
        f"Steps: {cell.warmup_steps} warm-up, {cell.windows} x {cell.window_steps} timed",
        f"Versions: {several}{'; '.join(versions)}",
    )
    return (_CPU, *found) if group.on_cpu else found


def _cells(budget: int, place: Place) -> tuple[str, ...]:
    entry = place.contender
    return (
        binary_size(budget),
        f"{place.place}, too close to call" if place.tied else str(place.place),
        entry.system,
        cache_size(entry.group.cell.cache_ratio, entry.group.cell.device_budget_bytes),
        amount(entry.samples_per_s),
        "1" if place.to_first is None else relative(place.to_first),
        str(len(entry.speeds)),
        megabytes(entry.device_bytes),
        count(entry.device_bytes),
        entry.basis.value,
    )


def _numbers(budget: int, place: Place) -> dict[str, object]:
    entry, ratio = place.contender, place.to_first
    return setting_numbers(entry.group, entry.records) | {
        "budget_bytes": budget,
        "place": place.place,
        "tied": place.tied,
        "system": entry.system,
        "samples_per_s": entry.samples_per_s,
        "to_first": 1.0 if ratio is None else ratio.ratio,
        "to_first_low": None if ratio is None else ratio.low,
        "to_first_high": None if ratio is None else ratio.high,
        "rounds": len(entry.speeds),
        "device_bytes": entry.device_bytes,
        "basis": entry.basis.value,
    }
