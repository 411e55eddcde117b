"""What every published table is made of: one sheet, many formats, so that they cannot disagree."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Head:
    """A column of a block: its words, and whether it is text (left-aligned)."""

    words: str
    text: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a block.

    Attributes:
        cells: As people read them; `n/a` where there is no value.
        keys: Keys of the records behind it; none for a row that others published.
    """

    cells: tuple[str, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """A table of one setting and machine.

    Attributes:
        heading: What tells it from the others; empty where the sheet has one block.
        facts: What holds for the whole block, a sentence each.
        heads: Its columns.
        lines: Its rows, in order.
        notes: What a reader has to know beside the numbers.
    """

    heading: str
    facts: tuple[str, ...] = ()
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A published table.

    Attributes:
        name: Of its files, without suffix.
        title: What it answers.
        legend: Its definitions, a sentence each.
        blocks: At least one; a sheet with nothing to show is left out of a report.
        frame: The same rows as raw numbers in SI units, empty where there is no value.
    """

    name: str
    title: str
    legend: tuple[str, ...]
    blocks: tuple[Block, ...]
    frame: pd.DataFrame
