"""The comparison: a table per group of records that may be compared."""

from collections.abc import Sequence
from typing import Any

from suite.records.groups import Group
from suite.tables.approximate import approximate_block
from suite.tables.columns import MAIN, REST
from suite.tables.disk import disk_blocks
from suite.tables.formatting import score
from suite.tables.ranks import rank_blocks
from suite.tables.rows import Row, baseline_repeat, merged_rows, one_line, remarks
from suite.tables.settings import caption, headings, on_drive, on_ranks
from suite.tables.sheet import Block, Sheet, setting_of
from suite.tables.verdict import verdict


def comparison(groups: Sequence[Group]) -> Sheet:
    """Per group a block of the main columns, with the rest of them.

    Approximate systems have a block of their own; so have rows on a drive, and ranks, behind all others.
    """
    plain = [group for group in groups if not on_drive(group) and not on_ranks(group)]
    blocks: list[Block] = []
    for group, heading in zip(plain, headings(plain), strict=True):
        blocks += [_block(group, heading), *approximate_block(group)]
    return Sheet(
        name="comparison",
        title="Comparison of embedding offload systems" if groups else "No records yet: run the benchmark first",
        blocks=(*blocks, *disk_blocks(groups), *rank_blocks(groups)),
        lines=tuple(line_of(row) for group in groups for row in rows_of(group)),
    )


def rows_of(group: Group) -> list[Row]:
    """A group's rows, with the baseline's repeat behind the baseline."""
    repeat = baseline_repeat(group)
    rows = []
    for row in merged_rows(group):
        rows += [row, repeat] if repeat is not None and row.records == repeat.records else [row]
    return rows


def line_of(row: Row) -> dict[str, Any]:
    """A row as raw numbers by column."""
    hits = None if not row.lookups or row.lookup_misses is None else 1 - row.lookup_misses / row.lookups
    numbers = {name: value for name, value in vars(row).items() if name not in ("notes", "records")}
    del numbers["ratio_low"], numbers["ratio_high"]
    return {
        **setting_of(row.records),
        **numbers,
        "ratio": row.relative,
        "lookup_hit_rate": hits,
        "status": row.status.value,
        "reason": one_line(row.reason),
    }


def _block(group: Group, heading: str) -> Block:
    rows = [row for row in rows_of(group) if row.exact]
    targets = {row.target_auroc for row in rows} - {None}
    return Block(
        heading=heading,
        summary=verdict(group),
        caption=caption([group], *(f"target AUROC {score(target)}" for target in targets)),
        columns=MAIN,
        more=REST,
        lines=tuple(map(line_of, rows)),
        notes=tuple(dict.fromkeys(remarks(rows))),
    )
