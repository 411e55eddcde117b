"""Rows of the page's main table, with what each is filtered and sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.report.page.behind import key_of
from suite.report.page.statements import Names
from suite.tables.columns import COLUMNS
from suite.tables.quantities import MISSING
from suite.tables.rows import Row, merged_rows, one_line, records_of


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """A row of the main table.

    Attributes:
        facets: What it can be filtered by.
        entries: By column its words, and what it is sorted by (None: no value, sorted last).
        records: Positions of those behind it in the list that the page carries.
    """

    system: str
    facets: dict[str, str]
    entries: tuple[tuple[str, object], ...]
    records: tuple[int, ...] = ()
    remark: str = ""


AGAIN = "The baseline a second time, in the same turns: how far this row lies from 1 is noise."


def page_rows(groups: Sequence[Group], positions: Mapping[str, int]) -> tuple[PageRow, ...]:
    """Rows of all groups in order.

    `positions` has those of every record in the list that the page carries, by key.
    """
    names = Names(groups)
    made: list[PageRow] = []
    for group in groups:
        facets = {
            "dataset": group.title,
            "setting": names.setting(group.cell),
            "optimizer": group.cell.optimizer,
            "device": names.device(group),
        }
        for row in merged_rows(group):
            keys = [key_of(record, row) for record in records_of(group, row)]
            made.append(_measured(row, facets, tuple(positions[key] for key in keys if key in positions)))
    return tuple(made)


def shown_columns(rows: Sequence[PageRow]) -> tuple[int, ...]:
    """Positions of the columns that have something to show."""
    return tuple(at for at in range(len(COLUMNS)) if any(row.entries[at][0] != MISSING for row in rows))


def _measured(row: Row, facets: Mapping[str, str], records: tuple[int, ...]) -> PageRow:
    reason = f"{row.status.value}: {one_line(row.reason)}" if row.reason else ""
    remarks = (AGAIN if row.again else "", reason, *row.notes)
    return PageRow(
        system=row.system,
        facets={**facets, "status": row.status.value},
        entries=tuple((column.show(row), getattr(row, column.field)) for column in COLUMNS),
        records=records,
        remark=" ".join(f"{remark.rstrip('.')}." for remark in remarks if remark),
    )
