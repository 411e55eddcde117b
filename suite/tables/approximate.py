"""Systems that are not exact: quality against bytes of tables. They are never ranked by speed with exact ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from suite.records.groups import Group, is_baseline
from suite.records.record import Record
from suite.tables.columns import relative
from suite.tables.quantities import MISSING, amount, count, megabytes, percent, score
from suite.tables.rows import Row, failure, merged_rows, records_of, trusted
from suite.tables.sheet import Block, Column, lines, notes
from suite.tables.statistics import Estimate, mean_of

HEADING = "Approximate systems: quality against bytes"
TIERS = ("device", "host", "disk")


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """A system of a group that has approximate ones: the exact baseline, and all that are not exact.

    Attributes:
        auroc: Mean over rounds; no interval with one round.
        below: The baseline's AUROC less its own, paired by round; None without a baseline.
        samples: Trained on.
        device_bytes, host_bytes, disk_bytes: Of rows and optimizer state.
        table_bytes: What the tables take where all rows are; `share` of the baseline's.
    """

    system: str
    exact: bool
    auroc: float | None = None
    auroc_low: float | None = None
    auroc_high: float | None = None
    below: float | None = None
    below_low: float | None = None
    below_high: float | None = None
    samples: int | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    table_bytes: int | None = None
    share: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: int = 0
    verified: str | None = None
    status: str = ""


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return score(value)
    return f"{_places(value)} [{_places(low)}, {_places(high)}]"


def _places(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4f}"


def _speed(row: Approximation) -> str:
    ratio = Estimate(value=row.ratio or 0.0, low=row.ratio_low, high=row.ratio_high)
    return amount(row.ratio) if ratio.low is None else relative(ratio)


_COLUMNS: tuple[Column[Approximation], ...] = (
    Column(words="system", show=lambda row: row.system, text=True),
    Column(words="AUROC", show=lambda row: _interval(row.auroc, row.auroc_low, row.auroc_high)),
    Column(words="below exact", show=lambda row: _interval(row.below, row.below_low, row.below_high)),
    Column(words="table MB", show=lambda row: megabytes(row.table_bytes)),
    Column(words="share", show=lambda row: percent(row.share, 1)),
    Column(words="device MB", show=lambda row: megabytes(row.device_bytes)),
    Column(words="host MB", show=lambda row: megabytes(row.host_bytes)),
    Column(words="disk MB", show=lambda row: megabytes(row.disk_bytes)),
    Column(words="vs full_gpu", show=_speed),
    Column(words="rounds", show=lambda row: count(row.rounds)),
    Column(words="verified", show=lambda row: row.verified or MISSING, text=True),
    Column(words="status", show=lambda row: row.status, text=True),
)


def approximations(group: Group) -> tuple[Approximation, ...]:
    """The approximate systems of a group, the most table bytes first, behind the exact baseline; none without them."""
    rows = [row for row in merged_rows(group) if not row.again]
    if all(row.exact for row in rows):
        return ()
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    exact = _aurocs(records_of(group, baseline)) if baseline is not None else {}
    found = [_approximation(row, records_of(group, row), exact) for row in rows if not row.exact or row is baseline]
    full = next((one.table_bytes for one in found if one.exact), None)
    shared = [replace(one, share=one.table_bytes / full) if full and one.table_bytes else one for one in found]
    return tuple(sorted(shared, key=lambda one: (not one.exact, -(one.table_bytes or 0), one.system)))


def approximate_block(group: Group) -> Block | None:
    """The block below a comparison's; None where all of its systems are exact."""
    found = approximations(group)
    if not found:
        return None
    shown = [column for column in _COLUMNS if any(column.show(one) != MISSING for one in found)]
    rows = {row.system: row for row in merged_rows(group) if not row.again}
    samples = {one.samples for one in found} - {None}
    failed = [f"{one.system}: {failure(rows[one.system])}" for one in found if one.status != "ok"]
    return Block(
        heading=HEADING,
        verdict=sentences(found),
        facts=tuple(f"Trained on {number:,} samples" for number in sorted(filter(None, samples))),
        heads=tuple(shown),
        lines=lines(shown, ((one, [run.key for run in group.rounds_by_system[one.system]]) for one in found)),
        notes=notes(failed, "Not measured"),
    )


def sentences(found: Sequence[Approximation]) -> tuple[str, ...]:
    """What a person can take from them: the fewest bytes without a loss that was seen, and the loss of the smallest."""
    measured = [one for one in found if not one.exact and one.below_low is not None and one.share is not None]
    if not measured:
        return ("Nothing can be said of what fewer bytes cost: that takes several rounds, with the baseline.",)
    free = [one for one in measured if one.below_low is not None and one.below_low <= 0]
    said = ["Every approximate system loses AUROC."]
    if free:
        least = min(free, key=lambda one: one.share or 0.0)
        said = [
            f"{least.system} takes {percent(least.share)} of the exact tables' bytes, and no loss of AUROC was seen "
            f"(at most {_places(least.below_high)})."
        ]
    small = min(measured, key=lambda one: one.share or 0.0)
    if small not in free:
        said.append(
            f"The smallest, {small.system}, takes {percent(small.share, 1)} and loses {_places(small.below)} "
            f"[{_places(small.below_low)}, {_places(small.below_high)}]."
        )
    return tuple(said)


def _approximation(row: Row, runs: Sequence[Record], exact: dict[int, float]) -> Approximation:
    own = _aurocs(runs)
    auroc = mean_of(list(own.values())) if own else None
    pairs = [exact[number] - value for number, value in own.items() if number in exact]
    below = mean_of(pairs) if pairs and not is_baseline(row.system) else None
    tiers = _bytes(runs)
    measured = [run for run in runs if run.measurement is not None]
    return Approximation(
        system=row.system,
        exact=row.exact,
        **_named("auroc", auroc),
        **_named("below", below),
        samples=measured[0].cell.steps * measured[0].cell.batch_size if measured else None,
        **{f"{tier}_bytes": tiers.get(tier) for tier in TIERS},
        # rows of a slower tier are all there; those on the device are copies then
        table_bytes=next((tiers[tier] for tier in reversed(TIERS) if tier in tiers), None),
        **{name: getattr(row, name) for name in ("ratio", "ratio_low", "ratio_high")},
        rounds=row.measured_rounds,
        verified=row.verified,
        status=row.status.value,
    )


def _named(name: str, mean: Estimate | None) -> dict[str, Any]:
    return {} if mean is None else {name: mean.value, f"{name}_low": mean.low, f"{name}_high": mean.high}


def _aurocs(runs: Sequence[Record]) -> dict[int, float]:
    """AUROC by round."""
    if not trusted(runs):
        return {}
    return {run.cell.round: run.measurement.quality.auroc for run in runs if run.measurement is not None}


def _bytes(runs: Sequence[Record]) -> dict[str, int]:
    """Rows and state by tier, the largest over rounds; a tier without any is left out."""
    found: dict[str, int] = {}
    for measurement in trusted(runs):
        anatomy = measurement.memory.anatomy_bytes
        for tier in TIERS:
            size = anatomy.get(f"{tier}/rows", 0) + anatomy.get(f"{tier}/state", 0)
            if size:
                found[tier] = max(size, found.get(tier, 0))
    return found
