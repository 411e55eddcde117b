"""The published sheets, one module each. `SHEETS` lists them in the order in which they are read."""

from __future__ import annotations

from suite.report.sheets.anatomy import anatomy_sheet
from suite.report.sheets.approximate import approximate_sheet
from suite.report.sheets.disk import disk_sheet
from suite.report.sheets.leaderboard import leaderboard_sheet
from suite.report.sheets.optimal import optimal_sheet
from suite.report.sheets.paper import paper_sheet
from suite.report.source import Source
from suite.tables.sheet import Sheet

SHEETS = (disk_sheet, paper_sheet, leaderboard_sheet, anatomy_sheet, optimal_sheet, approximate_sheet)


def sheets(source: Source) -> tuple[Sheet, ...]:
    """The sheets of a source; one with nothing to show is left out."""
    return tuple(sheet for make in SHEETS if (sheet := make(source)) is not None)
