"""Systems that are not exact: quality against bytes of tables. They are never ranked by speed with exact ones."""

from collections.abc import Sequence
from typing import Any

from suite.records.groups import RecordGroup, is_baseline
from suite.tables.columns import STATUS, SYSTEM, VERIFIED
from suite.tables.formatting import megabytes, percent, relative, score_within
from suite.tables.rows import Row, merged_rows, remarks
from suite.tables.sheet import Column, Line, ResultTable
from suite.tables.statistics import mean_of

HEADING = "Approximate systems: quality against bytes"
TIERS = ("device", "host", "disk")
COLUMNS = (
    SYSTEM,
    Column(
        words="AUROC", name="auroc", show=score_within,
        definition="on the test split, mean over rounds, which differ in seed, with Student's 95 % interval.",
    ),
    Column(
        words="below exact", name="below", show=score_within,
        definition="the baseline's AUROC less the system's, round by round, at equal samples trained.",
    ),
    Column(
        words="table MB", name="table_bytes", show=megabytes,
        definition="rows and optimizer state of whole tables, by the system's own account; slots on the device that "
        "hold copies of rows of a slower tier count as device MB alone.",
    ),
    Column(
        words="share", name="share", show=lambda share: percent(share, 1),
        definition="of the exact baseline's table MB.",
    ),
    *(Column(words=f"{tier} MB", name=f"{tier}_bytes", show=megabytes) for tier in TIERS),
    Column(
        words="vs full_gpu", name="ratio", show=relative, noisy=True,
        definition="speed beside the baseline in the same turns; they compute different things, so it is no ranking.",
    ),
    Column(words="rounds", name="rounds"),
    VERIFIED,
    STATUS,
)  # fmt: skip


def approximations(group: RecordGroup) -> list[dict[str, Any]]:
    """Lines of a group's approximate systems, the most bytes first, behind the exact baseline; none without them."""
    rows = merged_rows(group)
    if all(row.exact for row in rows):
        return []
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    exact = baseline.quality("auroc") if baseline is not None else {}
    found = [_line(row, exact) for row in rows if not row.exact or row is baseline]
    full = next((line["table_bytes"] for line in found if line["exact"]), None)
    for line in found:
        line["share"] = line["table_bytes"] / full if line["table_bytes"] and full else None
    return sorted(found, key=lambda line: (not line["exact"], -(line["table_bytes"] or 0), line["system"]))


def _line(row: Row, exact: dict[int, float]) -> dict[str, Any]:
    """Raw numbers by column but for the share; `exact` has the baseline's AUROC by round."""
    own = row.quality("auroc")
    pairs = [exact[number] - value for number, value in own.items() if number in exact]
    accounts = [measurement.memory.anatomy_bytes for measurement in row.measurements]
    sizes = [
        max((one.get(f"{tier}/rows", 0) + one.get(f"{tier}/state", 0) for one in accounts), default=0) for tier in TIERS
    ]
    return {
        **row.line(),
        "auroc": mean_of(list(own.values())) if own else None,
        "below": mean_of(pairs) if pairs and not is_baseline(row.system) else None,
        **{f"{tier}_bytes": size or None for tier, size in zip(TIERS, sizes, strict=True)},
        # of the slowest tier: rows there are all rows, and those on a faster one are copies
        "table_bytes": next((size for size in reversed(sizes) if size), None),
        "samples": row.cell.steps * row.cell.batch_size,
        "rounds": row.measured_rounds,
        "row": row,
    }


def approximate_tables(group: RecordGroup) -> list[ResultTable]:
    """The table below a comparison's; none where all of its systems are exact."""
    found = approximations(group)
    samples = group.cell.steps * group.cell.batch_size
    table = ResultTable(
        heading=HEADING,
        summary="" if group.on_virtual_device else _summary(found),
        caption=f"Trained on {samples:,} samples.",
        columns=COLUMNS,
        lines=tuple(found),
        notes=tuple(dict.fromkeys(remarks(line["row"] for line in found))),
    )
    return [table] if found else []


def _summary(found: Sequence[Line]) -> str:
    """The fewest bytes without a loss that was seen, and the loss of the smallest, of systems with an interval."""
    judged = [
        (line["share"], line["system"], below)
        for line in found
        if line["share"] is not None and (below := line["below"]) is not None and below.low is not None
    ]
    if not judged:
        return "Nothing can be said of what fewer bytes cost: that takes several rounds, with the baseline."
    free = [loss for loss in judged if (loss[2].low or 0.0) <= 0]
    said = "Every approximate system that can be judged loses AUROC"
    if free:
        share, system, below = min(free, key=lambda loss: loss[0])
        said = f"{system} takes {percent(share)} of the exact tables' bytes, and no loss of AUROC was seen"
        said += f" (at most {below.high:.4f})"
    share, system, below = min(judged, key=lambda loss: loss[0])
    if (share, system, below) not in free:
        said += f"; the smallest, {system}, takes {percent(share, 1)} and loses {score_within(below)}"
    return f"{said}."
