"""The comparison: a table per group of records that may be compared, and one per group of cells on several ranks."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from suite.records.groups import RecordGroup
from suite.records.record import Status
from suite.tables.approximate import approximate_tables
from suite.tables.columns import AUROC, HIT_RATE, MAIN, REST, STATUS, SYSTEM, VERIFIED
from suite.tables.disk import disk_tables
from suite.tables.formatting import amount, gigabytes, megabytes
from suite.tables.rows import Row, baseline_repeat, merged_rows, remarks
from suite.tables.settings import caption, headings, on_drive, on_ranks
from suite.tables.sheet import Column, ResultTable, Sheet
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
    Column(words="steps/s", name="rank_steps_per_s", show=amount, definition="of all ranks, mean over rounds."),
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
    speeds = [one.steps_per_s for one in ranks if one.steps_per_s is not None]
    found["rank_steps_per_s"] = statistics.fmean(speeds) if speeds else None
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
