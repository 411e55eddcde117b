"""The comparison: a table per group of records that may be compared, with the published rows of its dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.records.status import Status
from suite.tables.approximate import approximate_block
from suite.tables.columns import (
    COLUMNS,
    MAIN,
    PUBLISHED_HEADS,
    REST,
    SYSTEM,
    Columns,
    Measured,
    fitted,
    published_cells,
)
from suite.tables.disk_blocks import LEGEND as DISK_LEGEND
from suite.tables.disk_blocks import disk_blocks
from suite.tables.formats import write_sheets
from suite.tables.quantities import score
from suite.tables.ranks import LEGEND as RANKS_LEGEND
from suite.tables.ranks import on_ranks, rank_blocks
from suite.tables.rows import Row, failure, merged_rows, records_of
from suite.tables.settings import details, facts, headings, on_drive
from suite.tables.sheet import Block, Line, Sheet, frame, lines, notes
from suite.tables.verdict import verdict

LEGEND = (
    "GB = 1e9 bytes, MB = 1e6 bytes, it = iteration (one batch), ~ = extrapolated; n/a = does not exist, or not known.",
)


def comparison(groups: Sequence[Group], columns: Columns = Columns.ALL) -> Sheet:
    """Per group a block of the main columns; with all columns one of the rest below it, and published rows.

    Approximate systems have a block of their own; so have rows on a drive, and ranks, behind all others. Published rows
    stand below the last group of their dataset. A column that has nothing to show is left out.
    """
    plain = [group for group in groups if not on_drive(group) and not on_ranks(group)]
    last = {group.cell.workload: group for group in plain}
    blocks: list[Block] = []
    for group, heading in zip(plain, headings(plain), strict=True):
        rows = [row for row in merged_rows(group) if row.exact]
        blocks.append(_main(group, rows, heading))
        if columns is Columns.ALL:
            blocks.append(_rest(group, rows))
        approximate = approximate_block(group)
        blocks += [] if approximate is None else [approximate]
        if columns is Columns.ALL and last[group.cell.workload] is group:
            blocks += _published(group)
    drives = disk_blocks(groups, columns)
    ranks = rank_blocks(groups)
    blocks += (*drives, *ranks)
    shown = {head.words for block in blocks for head in block.heads}
    return Sheet(
        name="comparison",
        title="Comparison of embedding offload systems",
        legend=(
            *LEGEND,
            *(DISK_LEGEND if drives else ()),
            *(RANKS_LEGEND if ranks else ()),
            *(f"{column.words} = {column.definition}" for column in COLUMNS if column.words in shown),
        )
        if groups
        else ("No records yet: run the benchmark first.",),
        blocks=tuple(blocks),
        frame=frame(*groups, published=True),
    )


def write_tables(groups: Sequence[Group], directory: Path) -> tuple[Path, ...]:
    """Write `comparison.md` and `comparison.csv`; the directory is created if it is missing. Returns the two paths.

    Raises:
        StoreError: a file cannot be written; the earlier file is still whole.
    """
    return write_sheets([comparison(groups)], directory, suffixes=("md", "csv"))


def _main(group: Group, rows: Sequence[Row], heading: str) -> Block:
    failures = [f"{row.system}: {failure(row)}" for row in rows if row.status is not Status.OK]
    return replace(
        _block(group, rows, MAIN),
        heading=heading,
        verdict=verdict(group),
        facts=(*facts([group]), *_same_kernel(rows)),
        notes=(
            *notes(failures, "Not measured"),
            *notes(f"{row.system}: {note}" for row in rows for note in row.notes),
        ),
    )


def _rest(group: Group, rows: Sequence[Row]) -> Block:
    hits = [f"{row.system}: {_hits(row)}" for row in rows if row.hit_rate is not None]
    return replace(
        _block(group, rows, REST),
        facts=(*details([group]), *_target(rows)),
        notes=notes(hits, "Found on the device, counted before anything was fetched"),
    )


def _block(group: Group, rows: Sequence[Row], columns: Sequence[Measured]) -> Block:
    heads = (SYSTEM, *fitted(columns, rows))
    return Block(
        heading="",
        heads=heads,
        lines=lines(heads, ((row, [run.key for run in records_of(group, row)]) for row in rows)),
    )


def _same_kernel(rows: Sequence[Row]) -> tuple[str, ...]:
    """What `= full_gpu` means, where a row says so."""
    return tuple(
        f"= {name}: runs {name}'s own kernel on the same memory here, so it was not timed again"
        for name in dict.fromkeys(row.computes_as for row in rows if row.computes_as is not None)
    )


def _target(rows: Sequence[Row]) -> tuple[str, ...]:
    targets = {row.target_auroc for row in rows} - {None}
    return tuple(f"Target AUROC: {score(target)}, what the baseline had reached near its end" for target in targets)


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
