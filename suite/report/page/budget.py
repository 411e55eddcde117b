"""Standings within a budget of device memory, at every budget that the page's slider can choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.records.groups import Group
from suite.report.contests import Contest, contests, standings
from suite.report.sheets.leaderboard import COLUMNS, contest_facts, contest_headings, place_lines
from suite.tables.quantities import binary_bytes
from suite.tables.sheet import Block, Line


@dataclass(frozen=True, kw_only=True)
class BudgetTable:
    """A contest at every budget at which anything changes.

    Attributes:
        widest: The standings with room for every cell, as a block of the leaderboard.
        standings: Least budget and the lines from there on, in increasing order of budget.
        smallest: System and the device bytes of its smallest cell.
    """

    widest: Block
    standings: tuple[tuple[int, tuple[Line, ...]], ...]
    smallest: tuple[tuple[str, int], ...]

    def carried(self, positions: Mapping[str, int]) -> dict[str, Any]:
        """The table for the page's script; records by their positions."""
        return {
            "text": [head.text for head in self.widest.heads],
            "standings": [
                [size, [{"cells": line.cells, "records": [positions[key] for key in line.keys]} for line in found]]
                for size, found in self.standings
            ],
            "smallest": self.smallest,
        }


def budget_tables(groups: Sequence[Group]) -> tuple[BudgetTable, ...]:
    """Every contest's standings at every budget at which they change."""
    held = contests(groups)
    return tuple(_table(contest, heading) for contest, heading in zip(held, contest_headings(held), strict=True))


def budget_steps(groups: Sequence[Group]) -> tuple[tuple[int, str], ...]:
    """Budgets of a slider over all contests, in bytes and in words: powers of two, none left out between."""
    budgets = [budget for contest in contests(groups) for budget in contest.budgets]
    if not budgets:
        return ()
    first, last = min(budgets).bit_length() - 1, max(budgets).bit_length() - 1
    return tuple((2**power, binary_bytes(2**power)) for power in range(first, last + 1))


def _table(contest: Contest, heading: str) -> BudgetTable:
    smallest: dict[str, int] = {}
    for one in contest.contenders:
        smallest[one.system] = min(smallest.get(one.system, one.device_bytes), one.device_bytes)
    sizes = sorted({contender.device_bytes for contender in contest.contenders})
    found = tuple((size, place_lines(COLUMNS, standings(contest, size))) for size in sizes)
    return BudgetTable(
        widest=Block(heading=heading, facts=contest_facts(contest), heads=COLUMNS, lines=found[-1][1]),
        standings=found,
        smallest=tuple(sorted(smallest.items(), key=lambda item: (item[1], item[0]))),
    )
