"""A block of a sheet for one comparison group, as most sheets have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from suite.records.groups import Group
from suite.tables.settings import facts
from suite.tables.sheet import Block, Column, lines, notes, setting_numbers


class _OfSystem(Protocol):
    @property
    def system(self) -> str: ...


_Row = TypeVar("_Row", bound=_OfSystem)


def group_block(
    group: Group,
    heading: str,
    columns: Sequence[Column[_Row]],
    rows: Iterable[_Row],
    *,
    more_facts: Iterable[str] = (),
    remarks: Iterable[str] = (),
) -> Block:
    """A group's table: rows name their systems, whose records stand behind them; the group's facts come first."""
    return Block(
        heading=heading,
        facts=(*facts([group]), *more_facts),
        heads=tuple(columns),
        lines=lines(columns, ((row, [run.key for run in group.rounds_by_system[row.system]]) for row in rows)),
        notes=notes(remarks),
    )


def group_numbers(group: Group, rows: Iterable[_Row]) -> list[dict[str, object]]:
    """The same rows as raw numbers, for `suite.tables.sheet.raw_frame`."""
    return [setting_numbers(group, group.rounds_by_system[row.system]) | vars(row) for row in rows]
