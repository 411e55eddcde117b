"""Rows on a drive: speed within a host budget."""

from __future__ import annotations

from suite.report.source import Source
from suite.tables.disk import Step, rows_on_drive
from suite.tables.disk_blocks import LEGEND, TITLE, disk_blocks
from suite.tables.settings import on_drive
from suite.tables.sheet import Sheet, raw_frame, setting_numbers


def disk_sheet(source: Source) -> Sheet | None:
    """Two blocks per sweep of host budgets; None where no rows are on a drive."""
    blocks = disk_blocks(source.groups)
    if not blocks:
        return None
    numbers = [
        setting_numbers(group, one.runs) | one.numbers
        for step in Step
        for group in filter(on_drive, source.groups)
        for one in rows_on_drive([group], step)
    ]
    return Sheet(name="disk", title=TITLE, legend=LEGEND, blocks=blocks, frame=raw_frame(numbers))
