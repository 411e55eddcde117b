"""Systems that are not exact: quality against bytes of tables. They are never ranked by speed with exact ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from suite.records.groups import Group, is_baseline
from suite.tables.quantities import MISSING, amount, count, megabytes, percent, relative, score_within
from suite.tables.rows import Row, merged_rows, remarks
from suite.tables.settings import details, facts, headings
from suite.tables.sheet import Block, Column, Sheet, block, raw_frame, setting_numbers
from suite.tables.statistics import Estimate, mean_of, spread_out

HEADING = "Approximate systems: quality against bytes"
_LEGEND = (
    "Table MB: rows and optimizer state of whole tables, by the system's own account; slots on the device that hold "
    "copies of rows of a slower tier count as device MB alone. Share: of the exact baseline's. MB = 1e6 bytes.",
    "AUROC: on the test split, mean over rounds, which differ in seed, with Student's 95 % interval. Below exact: the "
    "baseline's AUROC less the system's, round by round, at equal samples trained.",
    "vs full_gpu: speed beside the baseline in the same turns; they compute different things, so it is no ranking.",
)
TIERS = ("device", "host", "disk")


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """A system of a group that has approximate ones: the exact baseline, and all that are not exact.

    Attributes:
        auroc: Mean over rounds; no interval with one round.
        below: The baseline's AUROC less its own, paired by round; None without a baseline.
        samples: Trained on.
        tiers: Bytes of rows and optimizer state by tier, the largest over rounds; a tier without any is left out.
        table_bytes: What the tables take where all rows are; `share` of the baseline's.
    """

    row: Row
    auroc: Estimate | None
    below: Estimate | None
    samples: int | None
    tiers: dict[str, int]
    table_bytes: int | None
    share: float | None

    @property
    def numbers(self) -> dict[str, object]:
        """The same as raw numbers, by column."""
        return {
            **{name: getattr(self.row, name) for name in ("system", "exact")},
            **spread_out("auroc", self.auroc),
            **spread_out("below", self.below),
            "samples": self.samples,
            **{f"{tier}_bytes": self.tiers.get(tier) for tier in TIERS},
            **{name: getattr(self, name) for name in ("table_bytes", "share")},
            **spread_out("ratio", self.row.relative),
            "rounds": self.row.measured_rounds,
            "verified": self.row.verified,
            "status": self.row.status.value,
        }


def _speed(one: Approximation) -> str:
    ratio = one.row.relative
    return amount(one.row.ratio) if ratio is None or ratio.low is None else relative(ratio)


def _tier(tier: str) -> Column[Approximation]:
    return Column(words=f"{tier} MB", show=lambda one: megabytes(one.tiers.get(tier)))


_COLUMNS: tuple[Column[Approximation], ...] = (
    Column(words="system", show=lambda one: one.row.system, text=True),
    Column(words="AUROC", show=lambda one: score_within(one.auroc)),
    Column(words="below exact", show=lambda one: score_within(one.below)),
    Column(words="table MB", show=lambda one: megabytes(one.table_bytes)),
    Column(words="share", show=lambda one: percent(one.share, 1)),
    *map(_tier, TIERS),
    Column(words="vs full_gpu", show=_speed),
    Column(words="rounds", show=lambda one: count(one.row.measured_rounds)),
    Column(words="verified", show=lambda one: one.row.verified or MISSING, text=True),
    Column(words="status", show=lambda one: one.row.status, text=True),
)


def approximations(group: Group) -> tuple[Approximation, ...]:
    """The approximate systems of a group, the most table bytes first, behind the exact baseline; none without them."""
    rows = [row for row in merged_rows(group) if not row.again]
    if all(row.exact for row in rows):
        return ()
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    exact = _aurocs(baseline) if baseline is not None else {}
    full = _table_bytes(_bytes(baseline)) if baseline is not None else None
    found = [_approximation(row, exact, full) for row in rows if not row.exact or row is baseline]
    return tuple(sorted(found, key=lambda one: (not one.row.exact, -(one.table_bytes or 0), one.row.system)))


def approximate_block(group: Group, heading: str = HEADING, facts: Sequence[str] = ()) -> list[Block]:
    """The block below a comparison's; none where all of its systems are exact."""
    found = approximations(group)
    if not found:
        return []
    samples = {one.samples for one in found if one.samples}
    return [
        block(
            _COLUMNS,
            [(one, one.row.records) for one in found],
            heading=heading,
            verdict=() if group.on_virtual_device else _sentences(found),
            facts=(*facts, *(f"Trained on {number:,} samples" for number in sorted(samples))),
            notes=remarks(one.row for one in found),
        )
    ]


def approximate_sheet(groups: Sequence[Group]) -> Sheet:
    """A block per group with approximate systems."""
    return Sheet(
        name="approximate",
        title=HEADING,
        legend=_LEGEND,
        blocks=tuple(
            made
            for group, heading in zip(groups, headings(groups), strict=True)
            for made in approximate_block(group, heading, (*facts([group]), *details([group])))
        ),
        frame=raw_frame(
            [setting_numbers(one.row.records) | one.numbers for group in groups for one in approximations(group)]
        ),
    )


def _sentences(found: Sequence[Approximation]) -> list[str]:
    """What a person can take from them: the fewest bytes without a loss that was seen, and the loss of the smallest."""
    losses = [
        (one.share, one.row.system, below)
        for one in found
        if not one.row.exact and one.share is not None and (below := one.below) is not None and below.low is not None
    ]
    if not losses:
        return ["Nothing can be said of what fewer bytes cost: that takes several rounds, with the baseline."]
    of = "" if len(losses) == sum(not one.row.exact for one in found) else f" of {len(losses)} that can be judged"
    said = [f"Every approximate system{of} loses AUROC."]
    free = [loss for loss in losses if (loss[2].low or 0.0) <= 0]
    if free:
        share, system, below = min(free, key=lambda loss: loss[0])
        said = [
            f"{system} takes {percent(share)} of the exact tables' bytes, and no loss of AUROC was seen "
            f"(at most {below.high:.4f})."
        ]
    small = min(losses, key=lambda loss: loss[0])
    if small not in free:
        share, system, below = small
        said.append(f"The smallest{of}, {system}, takes {percent(share, 1)} and loses {score_within(below)}.")
    return said


def _approximation(row: Row, exact: dict[int, float], full: int | None) -> Approximation:
    own = _aurocs(row)
    pairs = [exact[number] - value for number, value in own.items() if number in exact]
    tiers = _bytes(row)
    size = _table_bytes(tiers)
    return Approximation(
        row=row,
        auroc=mean_of(list(own.values())) if own else None,
        below=mean_of(pairs) if pairs and not is_baseline(row.system) else None,
        samples=row.cell.steps * row.cell.batch_size if any(run.measurement for run in row.records) else None,
        tiers=tiers,
        table_bytes=size,
        share=size / full if size and full else None,
    )


def _aurocs(row: Row) -> dict[int, float]:
    """AUROC by round."""
    measured = row.records if row.measured_rounds else ()
    return {run.cell.round: run.measurement.quality.auroc for run in measured if run.measurement is not None}


def _bytes(row: Row) -> dict[str, int]:
    """Rows and state by tier, the largest over rounds."""
    accounts = [measurement.memory.anatomy_bytes for measurement in row.measurements]
    sizes = {
        tier: max((one.get(f"{tier}/rows", 0) + one.get(f"{tier}/state", 0) for one in accounts), default=0)
        for tier in TIERS
    }
    return {tier: size for tier, size in sizes.items() if size}


def _table_bytes(tiers: dict[str, int]) -> int | None:
    """Of the slowest tier: rows there are all rows, and those on a faster one are copies."""
    return next((tiers[tier] for tier in reversed(TIERS) if tier in tiers), None)
