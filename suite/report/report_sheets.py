"""All sheets of a report, in the order in which they are read."""

from __future__ import annotations

from suite.report.anatomy import anatomy_sheet
from suite.report.board import leaderboard_sheet
from suite.report.optimal import optimal_sheet
from suite.report.paper import paper_sheet
from suite.report.predicted import predicted_sheet
from suite.report.sheets import Sheet
from suite.report.source import Source

_SHEETS = (paper_sheet, leaderboard_sheet, anatomy_sheet, optimal_sheet, predicted_sheet)


def sheets(source: Source) -> tuple[Sheet, ...]:
    """The published tables of a source; one with nothing to show is left out."""
    return tuple(sheet for make in _SHEETS if (sheet := make(source)) is not None)
