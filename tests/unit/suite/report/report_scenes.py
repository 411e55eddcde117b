"""Records and simulations that the tests of the report share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from suite.records.groups import group_records
from suite.records.record import Record, Verification
from suite.report.publish import Source
from suite.tables.sheet import ResultTable, Sheet


def source(records: Iterable[Record], **more: Any) -> Source:
    return Source(groups=tuple(group_records(records)), **more)


def unverified(records: Iterable[Record]) -> list[Record]:
    return [old.model_copy(update={"verification": Verification(checks=())}) for old in records]


def lines_of(block: ResultTable) -> list[dict[str, str]]:
    """Cells of all tables of a block by the words of their column."""
    columns = [column for table in block.frames for column in table.columns]
    return [{column.words: column.cell(line) for column in columns} for line in block.lines]


def only_table(sheet: Sheet | None) -> ResultTable:
    assert sheet is not None
    (block,) = sheet.tables
    return block
