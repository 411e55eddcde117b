"""The comparison: a table per group of records that may be compared, with the published rows of its dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.records.status import Status
from suite.tables.columns import COLUMNS, PUBLISHED_HEADS, SYSTEM, published_cells
from suite.tables.formats import write_sheets
from suite.tables.frames import frame
from suite.tables.quantities import amount, place_words
from suite.tables.rows import Row, failure, merged_rows
from suite.tables.settings import facts, headings
from suite.tables.sheet import Block, Line, Sheet, lines, notes
from suite.tables.statistics import rank

LEGEND = (
    "GB = 1e9 bytes and MB = 1e6 bytes; it = iteration, one batch; n/a = does not exist or is not known.",
    "it/s and epoch time: median over rounds; ~ before an epoch time: extrapolated from throughput.",
    "GPU GB: torch's peaks; CPU GB: peak resident memory of the process.",
    "vs full_gpu: samples/s relative to the all-on-device baseline, paired by round, with a 95 % interval.",
    "Hit rate: share of a batch's distinct rows that were on the device before anything was fetched.",
    "Optimal misses and minimum bytes: of Belady's rule, simulated on the same steps with as many slots.",
    "Rows, state, index and staging MB: device memory by purpose, by the system's own account.",
    "Verified: trained beside the reference before timing; bitwise, or the largest difference of any loss, row or "
    "(relative to its size) optimizer state.",
)


def comparison(groups: Sequence[Group]) -> Sheet:
    """A block per group, and one of the published rows after the last group of their dataset.

    Args:
        groups: From `suite.records.groups.group_records`.
    """
    last = {group.cell.workload: group for group in groups}
    return Sheet(
        name="comparison",
        title="Comparison of embedding offload systems",
        legend=LEGEND if groups else ("No records yet: run the benchmark first.",),
        blocks=tuple(
            block
            for group, heading in zip(groups, headings(groups), strict=True)
            for block in (_measured(group, heading), *(_published(group) if last[group.cell.workload] is group else ()))
        ),
        frame=frame(*groups, published=True),
    )


def write_tables(groups: Sequence[Group], directory: Path) -> tuple[Path, ...]:
    """Write `comparison.md` and `comparison.csv`; the directory is created if it is missing. Returns the two paths.

    Raises:
        StoreError: a file cannot be written; the earlier file is still whole.
    """
    return write_sheets([comparison(groups)], directory, suffixes=("md", "csv"))


def _measured(group: Group, heading: str) -> Block:
    rows = merged_rows(group)
    columns = (SYSTEM, *COLUMNS)
    failures = [f"{row.system}: {failure(row)}" for row in rows if row.status is not Status.OK]
    hits = [f"{row.system}: {_hits(row)}" for row in rows if row.hit_rate is not None]
    return Block(
        heading=heading,
        facts=facts([group]),
        heads=columns,
        lines=lines(columns, ((row, [run.key for run in group.rounds_by_system[row.system]]) for row in rows)),
        notes=(
            *notes(failures, "Not measured"),
            *notes(f"{row.system}: {note}" for row in rows for note in row.notes),
            *notes(hits, "Found on the device, counted before anything was fetched", detail=True),
            *notes(_ranking(group), _ranking_title(group)),
        ),
    )


def _published(group: Group) -> tuple[Block, ...]:
    rows = published_rows(group.cell.workload)
    if not rows:
        return ()
    return (
        Block(
            heading=f"{group.title}: published rows, measured by others on other hardware",
            heads=PUBLISHED_HEADS,
            lines=tuple(Line(cells=(*published_cells(row), "published", row.hardware)) for row in rows),
            notes=notes(published_notes(group, rows)),
        ),
    )


def published_notes(group: Group, rows: Sequence[PublishedRow]) -> tuple[str, ...]:
    """Where published rows come from, and what does not compare with them."""
    found = [
        f"Source: {'; '.join(dict.fromkeys(row.source for row in rows))}; cache ratio {100 * rows[0].cache_ratio:g} %, "
        f"batch {rows[0].batch_size:,}.",
        NOTE,
    ]
    if group.cell.data == "synthetic":
        found.append(
            "Labels of synthetic data are not those of the dataset: do not compare AUROC and accuracy with those of "
            "measured rows."
        )
    return tuple(found)


def _hits(row: Row) -> str:
    parts = [
        f"{total - missed:,} of {total:,} {what} ({100 * (1 - missed / total):.2f} %)"
        for total, missed, what in (
            (row.unique_ids, row.unique_misses, "distinct ids"),
            (row.lookups, row.lookup_misses, "lookups"),
        )
        if total and missed is not None
    ]
    return "; ".join(parts)


def _ranking_title(group: Group) -> str:
    baseline = "" if group.on_cpu else " and the all-on-device baseline"
    return (
        f"Ranking by throughput, among verified systems that offload{baseline} (too close to call: the 95 % interval "
        "of paired rounds spans 1, or there is one round only)"
    )


def _ranking(group: Group) -> list[str]:
    return [
        f"{place_words(one.place, tied=one.tied)}: {one.system}, {amount(one.samples_per_s)} samples/s"
        for one in rank(group.records)
    ] or ["no ranking: fewer than two verified systems offload in this comparison"]
