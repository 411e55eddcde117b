"""What the tests of the sheets share: sheets by name, and lines of them."""

from __future__ import annotations

from pathlib import Path

from suite.records.record import Record
from suite.report.sheets import sheets
from suite.tables.sheet import Block, Sheet
from tests.unit.suite.report.report_scenes import (
    lines_of,
    source,
)

ROOT = Path(__file__).resolve().parents[4]


NAMES = ["paper", "leaderboard", "anatomy", "optimal"]


def made(records: list[Record], *simulations) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in sheets(source(records, *simulations))}


def line_of(sheet: Sheet, system: str, **cells: str) -> dict[str, str]:
    head = "system or policy" if sheet.name == "optimal" else "system"
    (line,) = [
        line
        for block in sheet.blocks
        for line in lines_of(block)
        if line.get(head) == system and all(line[name] == text for name, text in cells.items())
    ]
    return line


def notes_of(block: Block) -> tuple[str, ...]:
    return tuple(sentence for notes in block.notes for sentence in notes.sentences)


def row_of(sheet: Sheet, **values: object):
    found = sheet.frame
    for name, value in values.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]
