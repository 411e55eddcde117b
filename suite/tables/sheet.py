"""What every published table is made of, before it becomes Markdown, CSV, LaTeX, a terminal's text or a page.

A sheet is made once and shown in many formats, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pandas as pd

_Row = TypeVar("_Row")


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a column.

    Attributes:
        words: Words between which a narrow terminal may break.
        text: The column holds text, set flush left.
        breaks: A terminal too narrow for all columns starts a new table before this one.
        repeats: Each of those tables begins with it; the first column does anyway.
    """

    words: str
    text: bool = False
    breaks: bool = False
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Column(Head, Generic[_Row]):
    """A column and how it shows a row.

    Attributes:
        show: A row's cell as people read it; `n/a` where there is no value.
    """

    show: Callable[[_Row], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a block.

    Attributes:
        cells: As people read them.
        keys: Keys of the records behind it; none for a row that others published.
    """

    cells: tuple[str, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Sentences about the rows of a block under a title of their own."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A table of one setting and machine.

    Attributes:
        heading: What tells it from the others; empty where it belongs to the block before it, or is the only one.
        verdict: What follows from the rows, a sentence each.
        facts: What holds for the whole block, a sentence each.
        heads: Its columns.
        lines: Its rows, in order.
        notes: What a reader has to know beside the numbers.
    """

    heading: str
    verdict: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[Notes, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A published table.

    Attributes:
        name: Of its files, without suffix.
        title: What it answers.
        legend: Its definitions, a sentence each.
        blocks: Its tables.
        frame: The same rows as raw numbers in SI units, empty where there is no value.
    """

    name: str
    title: str
    legend: tuple[str, ...]
    blocks: tuple[Block, ...]
    frame: pd.DataFrame


def lines(columns: Sequence[Column[_Row]], rows: Iterable[tuple[_Row, Sequence[str]]]) -> tuple[Line, ...]:
    """A line per row, from rows with the keys of the records behind them."""
    return tuple(Line(cells=tuple(column.show(row) for column in columns), keys=tuple(keys)) for row, keys in rows)


def notes(sentences: Iterable[str], title: str = "Notes") -> tuple[Notes, ...]:
    """Sentences under a title; nothing where there are none."""
    found = tuple(sentences)
    return (Notes(title=title, sentences=found),) if found else ()
