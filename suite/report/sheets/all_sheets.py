"""All sheets of a report, in the order in which they are read."""

from __future__ import annotations

from suite.report.sheets.anatomy import anatomy_sheet
from suite.report.sheets.board import leaderboard_sheet
from suite.report.sheets.optimal import optimal_sheet
from suite.report.sheets.paper import paper_sheet
from suite.report.sheets.predicted import predicted_sheet
from suite.report.sheets.sheet import Sheet
from suite.report.source import Source

_SHEETS = (paper_sheet, leaderboard_sheet, anatomy_sheet, optimal_sheet, predicted_sheet)


def sheets(source: Source) -> tuple[Sheet, ...]:
    """The published tables of a source; one with nothing to show is left out."""
    return tuple(sheet for make in _SHEETS if (sheet := make(source)) is not None)
