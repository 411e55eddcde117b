"""The paper's table (arXiv 2208.05321): dataset by method, our rows beside the published ones."""

from __future__ import annotations

from dataclasses import replace

from suite.records.groups import Group
from suite.records.published import PublishedRow, published_rows
from suite.records.status import Status
from suite.report.sheets.blocks import group_block
from suite.report.source import Source
from suite.tables.columns import PAPER, SYSTEM, published_cells
from suite.tables.comparison import published_notes
from suite.tables.rows import Row, failure, merged_rows, noise_floor
from suite.tables.settings import cache_size, headings, on_drive
from suite.tables.sheet import SETTING_COLUMNS, Block, Column, Line, Sheet, frame

_LEGEND = (
    "Columns are those of the paper's own table, arXiv 2208.05321.",
    "A row is measured (by this suite, on the hardware named) or published (by others, on theirs); no number of one is "
    "comparable with the other unless hardware, batch and cache are the same.",
    "Measured rows: GB = 1e9 bytes; it/s: of turns with the other systems; epoch time: its samples at that speed; "
    "GPU GB: torch's peaks; CPU GB: peak resident memory of the process; n/a = does not exist or is not known.",
)
_RAW = (*SETTING_COLUMNS, "system", *(column.field for column in PAPER), "verified", "status")


def paper_sheet(source: Source) -> Sheet | None:
    """A block per dataset, setting and machine; the published rows of the dataset at the end of each.

    The paper has no rows on a drive, and neither has its layout.
    """
    groups = [group for group in source.groups if not on_drive(group)]
    if not groups:
        return None
    numbers = frame(*groups, published=True)
    return Sheet(
        name="paper",
        title="Dataset by method, in the paper's layout",
        legend=_LEGEND,
        blocks=tuple(_block(group, heading) for group, heading in zip(groups, headings(groups), strict=True)),
        frame=numbers[~numbers["again"].fillna(value=False)][list(_RAW)],  # a second copy is of no use there
    )


def _block(group: Group, heading: str) -> Block:
    found = merged_rows(group)
    rows = [row for row in found if not row.again]
    published = published_rows(group.cell.workload)
    failed = [f"{row.system}: {failure(row)}" for row in rows if row.status is not Status.OK]
    noted = [f"{row.system}: {note}" for row in rows for note in row.notes]
    others = published_notes(group, published) if published else ("The paper has no rows for this dataset.",)
    block = group_block(group, heading, _columns(group, noise_floor(found)), rows, remarks=(*failed, *noted, *others))
    return replace(block, lines=(*block.lines, *map(_published, published)))


def _columns(group: Group, noise: float | None) -> tuple[Column[Row], ...]:
    hardware = f"{group.key.device}, CPU only" if group.on_cpu else group.key.device
    return (
        SYSTEM,
        *(column.under(noise) for column in PAPER),
        Column(words="row is", show=_kind, text=True),
        Column(words="hardware", show=lambda _: hardware, text=True),
        Column(words="batch", show=lambda _: f"{group.cell.batch_size:,}"),
        Column(words="cache ratio or budget", show=lambda _: cache_size(group.cell)),
    )


def _kind(row: Row) -> str:
    if row.status is not Status.OK:
        return row.status.value
    return "measured, not verified" if row.verified == "no" else "measured"


def _published(row: PublishedRow) -> Line:
    return Line(
        cells=(
            *published_cells(row),
            "published",
            row.hardware,
            f"{row.batch_size:,}",
            f"{100 * row.cache_ratio:g} %",
        )
    )
