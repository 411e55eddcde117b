"""Rows of the page's main table, with what each is filtered and sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import BASELINE, Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.report.page.behind import SECOND
from suite.report.page.statements import Names
from suite.tables.columns import COLUMNS, PAPER, Measured, published_cells
from suite.tables.quantities import MISSING
from suite.tables.rows import Row, merged_rows, noise_floor, one_line
from suite.tables.sheet import published_numbers


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell of the main table: its words, and what it is sorted by (None: no value, sorted last)."""

    text: str
    value: float | str | None


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """A row of the main table: what it can be filtered by, a cell per column, positions of the records behind it."""

    system: str
    facets: dict[str, str]
    entries: tuple[Entry, ...]
    records: tuple[int, ...] = ()
    remark: str = ""
    published: bool = False


AGAIN = "The baseline a second time, in the same turns: how far this row lies from 1 is noise."


def page_rows(groups: Sequence[Group], positions: Mapping[str, int]) -> tuple[PageRow, ...]:
    """Rows of all groups in order, published rows after the last group of their dataset.

    `positions` has those of every record in the list that the page carries, by key.
    """
    names = Names(groups)
    last = {group.cell.workload: position for position, group in enumerate(groups)}
    made: list[PageRow] = []
    for position, group in enumerate(groups):
        facets = {
            "dataset": group.title,
            "setting": names.setting(group.cell),
            "optimizer": group.cell.optimizer,
            "device": names.device(group),
        }
        rows = merged_rows(group)
        columns = [column.under(noise_floor(rows)) for column in COLUMNS]
        made += [_measured(row, facets, columns, records=behind(group, row, positions)) for row in rows]
        if last[group.cell.workload] == position:
            made += [_published(row, group.title) for row in published_rows(group.cell.workload)]
    return tuple(made)


def shown_columns(rows: Sequence[PageRow]) -> tuple[int, ...]:
    """Positions of the columns that have something to show of a measured row."""
    measured = [row for row in rows if not row.published]
    return tuple(at for at in range(len(COLUMNS)) if any(row.entries[at].text != MISSING for row in measured))


def behind(group: Group, row: Row, positions: Mapping[str, int]) -> tuple[int, ...]:
    """Positions of the records behind a row."""
    system, suffix = (BASELINE, SECOND) if row.again else (row.system, "")
    found = (positions.get(record.key + suffix) for record in group.rounds_by_system[system])
    return tuple(position for position in found if position is not None)


def _measured(row: Row, facets: Mapping[str, str], columns: Sequence[Measured], *, records: tuple[int, ...]) -> PageRow:
    reason = f"{row.status.value}: {one_line(row.reason)}" if row.reason else ""
    remarks = (AGAIN if row.again else "", reason, *row.notes)
    return PageRow(
        system=row.system,
        facets={**facets, "status": row.status.value},
        entries=tuple(Entry(text=column.show(row), value=getattr(row, column.field)) for column in columns),
        records=records,
        remark=" ".join(f"{remark.rstrip('.')}." for remark in remarks if remark),
    )


def _published(row: PublishedRow, title: str) -> PageRow:
    numbers = published_numbers(row)
    texts = dict(zip((column.words for column in PAPER), published_cells(row)[1:], strict=True))
    texts["status"] = "published"
    return PageRow(
        system=row.system,
        facets={
            "dataset": title,
            "setting": f"real, cache ratio {100 * row.cache_ratio:g} %, batch {row.batch_size:,}",
            "optimizer": MISSING,
            "device": row.hardware,
            "status": "published",
        },
        entries=tuple(
            Entry(text=texts.get(column.words, MISSING), value=numbers.get(column.field)) for column in COLUMNS
        ),
        remark=f"Published by others, on other hardware; there is no record. Source: {row.source}. {NOTE}",
        published=True,
    )
