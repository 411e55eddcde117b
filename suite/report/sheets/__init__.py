"""The published sheets. `SHEETS` lists them in the order in which they are read."""

from collections.abc import Sequence

from suite.records.groups import Group
from suite.report.sheets.anatomy import anatomy_sheet
from suite.report.sheets.leaderboard import leaderboard_sheet
from suite.report.sheets.optimal import optimal_sheet
from suite.report.sheets.paper import paper_sheet
from suite.tables.approximate import approximate_sheet
from suite.tables.disk_blocks import disk_sheet
from suite.tables.sheet import Sheet

SHEETS = (disk_sheet, paper_sheet, leaderboard_sheet, anatomy_sheet, optimal_sheet, approximate_sheet)


def sheets(groups: Sequence[Group]) -> tuple[Sheet, ...]:
    """The sheets of all groups; one with nothing to show is left out."""
    return tuple(sheet for make in SHEETS if (sheet := make(groups)).blocks)
