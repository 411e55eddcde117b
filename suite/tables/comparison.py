"""The comparison: a table per group of records that may be compared, of its approximate systems, and of ranks.

Systems that are not exact are shown by quality against bytes, and never ranked by speed with exact ones.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from suite.records.groups import RecordGroup, is_baseline
from suite.records.record import Status
from suite.tables.columns import AUROC, HIT_RATE, MAIN, REST, STATUS, SYSTEM, VERIFIED
from suite.tables.disk import disk_tables
from suite.tables.formatting import amount, gigabytes, megabytes, percent, relative, score_within
from suite.tables.rows import Row, baseline_repeat, merged_rows, remarks
from suite.tables.settings import caption, headings, on_drive, on_ranks
from suite.tables.sheet import Column, Line, ResultTable, Sheet
from suite.tables.statistics import mean_of
from suite.tables.verdict import listed, verdict

_PER_RANK = {
    "table_bytes": ("tables MB per rank", megabytes),
    "device_bytes": ("device MB per rank", megabytes),
    "host_peak_rss_bytes": ("CPU GB per rank", gigabytes),
    "device_reserved_bytes": ("GPU GB reserved per rank", gigabytes),
}
"""Fields of `RankShare`."""
_OF_RANKS = (
    SYSTEM,
    AUROC,
    VERIFIED,
    Column(words="steps/s", name="alone_steps_per_s", show=amount, definition="of all ranks, mean over rounds."),
    *(
        Column(words=words, name=f"{name}_per_rank", text=True, definition="the smallest and the largest.")
        for name, (words, _) in _PER_RANK.items()
    ),
    HIT_RATE,
    Column(words="lookups imbalance", name="lookups_imbalance", show="{:.2f}".format),
    Column(
        words="misses imbalance", name="unique_misses_imbalance", show="{:.2f}".format,
        definition="as of lookups: the largest over the mean of ranks, in the first round's counted steps.",
    ),
    Column(
        words="MB of ids sent per it", name="ids_bytes", show=megabytes,
        definition="ids with the lengths of bags, by all ranks together to others.",
    ),
    Column(
        words="MB pooled sent per it", name="pooled_bytes", show=megabytes,
        definition="pooled vectors with their gradients, likewise.",
    ),
    STATUS,
)  # fmt: skip
"""Columns of cells on several ranks: what each holds and does, and what they send each other."""


APPROXIMATE: Final = "Approximate systems: quality against bytes"
_TIERS: Final = ("device", "host", "disk")
_OF_APPROXIMATE = (
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
    *(Column(words=f"{tier} MB", name=f"{tier}_bytes", show=megabytes) for tier in _TIERS),
    Column(
        words="vs full_gpu", name="ratio", show=relative, noisy=True,
        definition="speed beside the baseline in the same turns; they compute different things, so it is no ranking.",
    ),
    Column(words="rounds", name="rounds"),
    VERIFIED,
    STATUS,
)  # fmt: skip


def comparison(groups: Sequence[RecordGroup]) -> Sheet:
    """Per group a table of the main columns, with the rest of them. The baseline's repeat is in the CSV alone.

    Approximate systems have a table of their own; so have rows on a drive, and ranks, behind all others.
    """
    plain = [group for group in groups if not on_drive(group) and not on_ranks(group)]
    tables: list[ResultTable] = []
    for group, heading in zip(plain, headings(plain), strict=True):
        tables += [_table(group, heading), *approximate_tables(group)]
    return Sheet(
        name="comparison",
        title="Comparison of embedding offload systems" if groups else "No records yet: run the benchmark first",
        tables=(*tables, *disk_tables(groups), *rank_tables(groups)),
    )


def _table(group: RecordGroup, heading: str) -> ResultTable:
    rows = [row for row in merged_rows(group) if row.exact]
    alike = [row for row in rows if row.same_kernel_as is not None and row.status is Status.OK]
    repeat = baseline_repeat(group)
    return ResultTable(
        heading=heading,
        summary=verdict(group),
        caption=caption([group]),
        columns=MAIN,
        more=REST,
        lines=tuple(row.line() for row in rows if row not in alike),
        unshown=tuple(row.line() for row in (*alike, repeat) if row is not None),
        notes=tuple(dict.fromkeys([*_alike(alike), *remarks(rows)])),
    )


def _alike(rows: Sequence[Row]) -> Iterator[str]:
    """Systems that are another one's kernel here, which only files of raw numbers show."""
    for kernel in dict.fromkeys(row.same_kernel_as for row in rows):
        names = [row.system for row in rows if row.same_kernel_as == kernel]
        verb = "is" if len(names) == 1 else "are"
        yield f"{listed(names)} {verb} {kernel}'s kernel on the same memory here: not timed again, and in the CSV alone"


def approximations(group: RecordGroup) -> list[dict[str, Any]]:
    """Lines of a group's approximate systems, the most bytes first, behind the exact baseline; none without them."""
    rows = merged_rows(group)
    if all(row.exact for row in rows):
        return []
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    exact = baseline.quality("auroc") if baseline is not None else {}
    found = [_approximate_line(row, exact) for row in rows if not row.exact or row is baseline]
    full = next((line["table_bytes"] for line in found if line["exact"]), None)
    for line in found:
        line["share"] = line["table_bytes"] / full if line["table_bytes"] and full else None
    return sorted(found, key=lambda line: (not line["exact"], -(line["table_bytes"] or 0), line["system"]))


def _approximate_line(row: Row, exact: dict[int, float]) -> dict[str, Any]:
    """Raw numbers by column but for the share; `exact` has the baseline's AUROC by round."""
    own = row.quality("auroc")
    pairs = [exact[number] - value for number, value in own.items() if number in exact]
    accounts = [measurement.memory.anatomy_bytes for measurement in row.measurements]
    sizes = [
        max((one.get(f"{tier}/rows", 0) + one.get(f"{tier}/state", 0) for one in accounts), default=0)
        for tier in _TIERS
    ]
    return {
        **row.line(),
        "auroc": mean_of(list(own.values())) if own else None,
        "below": mean_of(pairs) if pairs and not is_baseline(row.system) else None,
        **{f"{tier}_bytes": size or None for tier, size in zip(_TIERS, sizes, strict=True)},
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
        heading=APPROXIMATE,
        summary="" if group.on_virtual_device else _cost_of_fewer_bytes(found),
        caption=f"Trained on {samples:,} samples.",
        columns=_OF_APPROXIMATE,
        lines=tuple(found),
        notes=tuple(dict.fromkeys(remarks(line["row"] for line in found))),
    )
    return [table] if found else []


def _cost_of_fewer_bytes(found: Sequence[Line]) -> str:
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
        said += f" ({score_within(below)})"
    share, system, below = min(judged, key=lambda loss: loss[0])
    if (share, system, below) not in free:
        said += f"; the smallest, {system}, takes {percent(share, 1)} and loses {score_within(below)}"
    return f"{said}."


def rank_tables(groups: Sequence[RecordGroup]) -> tuple[ResultTable, ...]:
    """A table per group of systems on ranks, few ranks first."""
    mine = [group for group in groups if on_ranks(group)]
    mine.sort(key=lambda group: (group.key.workload_order, group.cell.ranks or 0))
    return tuple(_rank_table(group, heading) for group, heading in zip(mine, headings(mine), strict=True))


def _rank_table(group: RecordGroup, heading: str) -> ResultTable:
    rows = merged_rows(group)
    accounts = [measurement.ranks for row in rows for measurement in row.measurements if measurement.ranks is not None]
    backends = "".join(dict.fromkeys(f", {one.backend}" for one in accounts))
    return ResultTable(
        heading=heading,
        caption=caption([group], f"ranks on one machine{backends}"),
        columns=_OF_RANKS,
        lines=tuple(map(_rank_line, rows)),
        notes=tuple(dict.fromkeys(remarks(rows))),
    )


def _rank_line(row: Row) -> dict[str, Any]:
    found = row.line()
    ranks = [measurement.ranks for measurement in row.measurements if measurement.ranks is not None]
    shares = ranks[0].shares if ranks else ()  # of the first round, whose traffic was counted
    for name, (_, show) in _PER_RANK.items():
        sizes = [getattr(share, name) for share in shares]
        if sizes and None not in sizes:
            found[f"{name}_per_rank"] = " to ".join(dict.fromkeys(map(show, (min(sizes), max(sizes)))))
    for name in ("lookups", "unique_misses"):
        counts = [getattr(share, name) for share in shares]
        found[f"{name}_imbalance"] = (
            max(counts) * len(counts) / sum(counts) if None not in counts and sum(counts) else None
        )
    for name in ("ids_bytes", "pooled_bytes"):
        sent = [getattr(share, name) for share in shares]
        found[name] = sum(sent) / ranks[0].steps if sent and None not in sent else None
    return found
