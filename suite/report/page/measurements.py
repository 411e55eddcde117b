"""Rows of the page's main table, with what each is filtered by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.report.page.behind import key_of
from suite.report.page.statements import facets
from suite.tables.rows import Row, merged_rows, one_line

AGAIN = "The baseline a second time, in the same turns: how far this row lies from 1 is noise."


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """A row of the main table.

    Attributes:
        facets: What it can be filtered by.
        records: Positions of those behind it in the list that the page carries.
    """

    row: Row
    facets: dict[str, str]
    records: tuple[int, ...]

    @property
    def remark(self) -> str:
        """What a reader has to know beside the numbers."""
        row = self.row
        reason = f"{row.status.value}: {one_line(row.reason)}" if row.reason else ""
        remarks = (AGAIN if row.again else "", reason, *row.notes)
        return " ".join(f"{remark.rstrip('.')}." for remark in remarks if remark)


def page_rows(groups: Sequence[Group], positions: Mapping[str, int]) -> tuple[PageRow, ...]:
    """Rows of all groups in order.

    `positions` has those of every record in the list that the page carries, by key.
    """
    named, made = facets(groups), []
    for group in groups:
        for row in merged_rows(group):
            keys = [key_of(record, row) for record in row.records]
            made.append(
                PageRow(
                    row=row,
                    facets={**named[group.key], "status": row.status.value},
                    records=tuple(positions[key] for key in keys if key in positions),
                )
            )
    return tuple(made)
