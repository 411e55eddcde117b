"""Standings within a budget of device memory, at every budget that the page's slider can choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.records.groups import Group
from suite.report.sheets.leaderboard import COLUMNS, leaderboard_facts, leaderboard_headings, place_lines
from suite.report.standings import Leaderboard, leaderboards, standings
from suite.tables.quantities import binary_bytes
from suite.tables.sheet import Block, Line


@dataclass(frozen=True, kw_only=True)
class BudgetTable:
    """A leaderboard at every budget at which anything changes.

    Attributes:
        widest: The standings with room for every cell, as a block of the leaderboard.
        standings: Least budget and the lines from there on, in increasing order of budget.
        smallest: Every system and the device bytes of its smallest cell.
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
    """Every leaderboard's standings at every budget at which they change."""
    held = leaderboards(groups)
    return tuple(_table(one, heading) for one, heading in zip(held, leaderboard_headings(held), strict=True))


def budget_steps(groups: Sequence[Group]) -> tuple[tuple[int, str], ...]:
    """Budgets of a slider over all leaderboards, in bytes and in words: powers of two, none left out between."""
    budgets = [budget for one in leaderboards(groups) for budget in one.budgets]
    if not budgets:
        return ()
    first, last = min(budgets).bit_length() - 1, max(budgets).bit_length() - 1
    return tuple((2**power, binary_bytes(2**power)) for power in range(first, last + 1))


def _table(leaderboard: Leaderboard, heading: str) -> BudgetTable:
    smallest: dict[str, int] = {}
    for one in leaderboard.contenders:
        smallest[one.system] = min(smallest.get(one.system, one.size), one.size)
    sizes = sorted({contender.size for contender in leaderboard.contenders})
    found = tuple((size, place_lines(COLUMNS, standings(leaderboard, size))) for size in sizes)
    return BudgetTable(
        widest=Block(heading=heading, facts=leaderboard_facts(leaderboard), heads=COLUMNS, lines=found[-1][1]),
        standings=found,
        smallest=tuple(sorted(smallest.items(), key=lambda item: (item[1], item[0]))),
    )
