"""Titles of a figure and of its panels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from suite.records.groups import Group


@dataclass(frozen=True)
class Titles:
    """What all panels share stands once, above.

    Attributes:
        shared: Device and setting, where they are the same in all panels.
        own: What tells a panel from the others, beside its dataset.
    """

    shared: tuple[str, ...]
    own: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Titles:
        """Of the panels' groups."""
        facts = [(_device(group), _setting(group)) for group in groups]
        alike = [len(set(column)) == 1 for column in zip(*facts, strict=True)]
        return cls(
            tuple(itertools.compress(facts[0], alike)),
            tuple(tuple(itertools.compress(fact, [not same for same in alike])) for fact in facts),
        )


def _device(group: Group) -> str:
    where = f"{group.key.device}, {group.key.threads} threads"
    return f"on a CPU: {where}" if group.on_cpu else f"on {group.key.device}"


def _setting(group: Group) -> str:
    cell = group.cell
    capped = "" if cell.max_rows is None else f", {cell.max_rows:,} rows"
    return (
        f"{cell.data} data, scale {cell.scale}{capped}, {cell.optimizer}, batch {cell.batch_size:,}, "
        f"dim {cell.embedding_dim}"
    )
