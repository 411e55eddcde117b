"""The comparison: a table per group of records that may be compared."""

from collections.abc import Iterable, Sequence

from suite.records.groups import Group
from suite.tables.approximate import approximate_block
from suite.tables.columns import COLUMNS, MAIN, REST, SYSTEM, Columns
from suite.tables.disk_blocks import LEGEND as DISK_LEGEND
from suite.tables.disk_blocks import disk_blocks
from suite.tables.quantities import percent, score
from suite.tables.ranks import LEGEND as RANKS_LEGEND
from suite.tables.ranks import on_ranks, rank_blocks
from suite.tables.rows import Row, merged_rows, one_line, remarks
from suite.tables.settings import details, facts, headings, on_drive
from suite.tables.sheet import Block, Sheet, block, raw_frame, setting_numbers
from suite.tables.statistics import trusted_baseline
from suite.tables.verdict import verdict

LEGEND = (
    "GB = 1e9 bytes, MB = 1e6 bytes, it = iteration (one batch), ~ = extrapolated; n/a = does not exist, or not known.",
)


def comparison(groups: Sequence[Group], columns: Columns = Columns.ALL) -> Sheet:
    """Per group a block of the main columns; with all columns one of the rest below it.

    Approximate systems have a block of their own; so have rows on a drive, and ranks, behind all others. A column that
    has nothing to show is left out.
    """
    plain = [group for group in groups if not on_drive(group) and not on_ranks(group)]
    blocks: list[Block] = []
    for group, heading in zip(plain, headings(plain), strict=True):
        rows = [row for row in merged_rows(group) if row.exact]
        blocks.append(_main(group, rows, heading))
        blocks += [_rest(group, rows)] if columns is Columns.ALL else []
        blocks += approximate_block(group)
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
        frame=raw_frame(numbers(groups)),
    )


def _main(group: Group, rows: Sequence[Row], heading: str) -> Block:
    return block(
        (SYSTEM, *MAIN),
        [(row, row.records) for row in rows],
        heading=heading,
        verdict=verdict(group),
        facts=(*facts([group]), *_same_kernel(rows)),
        notes=remarks(rows),
    )


def _rest(group: Group, rows: Sequence[Row]) -> Block:
    targets = {row.target_auroc for row in rows} - {None}
    whose = "baseline" if trusted_baseline(group.rounds_by_system.values()) else "reference"
    hits = [f"{row.system}: {_hits(row)}" for row in rows if row.hit_rate is not None]
    return block(
        (SYSTEM, *REST),
        [(row, row.records) for row in rows],
        facts=(
            *details([group]),
            *(f"Target AUROC: {score(target)}, what the {whose} had reached near its end" for target in targets),
        ),
        notes={"Found on the device, counted before anything was fetched": hits},
    )


def _same_kernel(rows: Sequence[Row]) -> tuple[str, ...]:
    """What `= full_gpu` means, where a row says so."""
    return tuple(
        f"= {name}: runs {name}'s own kernel on the same memory here, so it was not timed again"
        for name in dict.fromkeys(row.computes_as for row in rows if row.computes_as is not None)
    )


def _hits(row: Row) -> str:
    parts = [
        f"{total - missed:,} of {total:,} {what} ({percent(1 - missed / total, 2)})"
        for total, missed, what in (
            (row.unique_ids, row.unique_misses, "distinct ids"),
            (row.lookups, row.lookup_misses, "lookups"),
        )
        if total and missed is not None
    ]
    return "; ".join(parts)


def numbers(groups: Iterable[Group]) -> list[dict[str, object]]:
    """The comparison as raw numbers: a line per system and group."""
    return [
        setting_numbers(row.records)
        | {name: value for name, value in vars(row).items() if name not in ("notes", "noise", "records")}
        | {"status": row.status.value, "reason": one_line(row.reason)}
        for group in groups
        for row in merged_rows(group)
    ]
