"""The comparison in a terminal, whatever its width: columns are stacked before anything is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.records.groups import Group
from suite.tables.comparison import comparison
from suite.tables.sheet import Block


def render(console: Console, groups: Sequence[Group]) -> None:
    """Print every group's table with what belongs to it, then the legend."""
    sheet = comparison(groups)
    for block in sheet.blocks:
        if block.heading:
            print_line(console, block.heading, style="bold")
        for fact in block.facts:
            print_line(console, fact)
        _stacked(console, block)
        for notes in block.notes:
            if notes.detail:
                continue
            print_line(console, f"{notes.title}:")
            for sentence in notes.sentences:
                print_line(console, sentence, indent=2)
        console.line()
    print_line(console, " ".join(sheet.legend), style="dim")


def print_line(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a sentence in lines that fit the console; lines after the first stand further in."""
    # Text, not a string: names such as `cache[policy=lfu]` would be read as markup.
    for number, line in enumerate(Text(text, style=style).wrap(console, console.width - 2 * indent)):
        line.rstrip()
        console.print(Text(" " * (indent * min(number + 1, 2))) + line, highlight=False)


def _stacked(console: Console, block: Block) -> None:
    """Print one table, or several that repeat the first column, none wider than the terminal."""
    text = [head.text for head in block.heads]
    cells = [[head.words.replace(" ", "\n") for head in block.heads], *(line.cells for line in block.lines)]
    widths = _widths(cells)
    gap = 2
    parts = [list(range(len(widths)))]
    if sum(widths) + gap * (len(widths) - 1) > console.width:
        gap = 1
        cells = [[_folded(line[0]), *line[1:]] for line in cells]
        breaks = [index for index, head in enumerate(block.heads) if head.breaks]
        parts = _parts(_widths(cells), width=console.width, gap=gap, breaks=breaks)
    for part in parts:
        # The box draws a blank between columns; the padding is the rest of the gap.
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=False)
        for index in part:
            table.add_column(
                Text(cells[0][index]),
                justify="left" if text[index] else "right",
                vertical="top",
                # Names fold where they alone leave no room for a number; numbers never do.
                no_wrap=not text[index],
                overflow="fold",
            )
        for line in cells[1:]:
            table.add_row(*(Text(line[index]) for index in part))
        console.print(table, highlight=False)
        console.line()


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in zip(*cells, strict=True)]


def _folded(name: str) -> str:
    """A system's name with its variant below it."""
    return name.replace("[", "\n [").replace(",", ",\n  ")


def _parts(widths: Sequence[int], *, width: int, gap: int, breaks: Sequence[int]) -> list[list[int]]:
    """Column indices by table: a new one, which repeats column 0, at `breaks` and wherever the width runs out."""
    parts: list[list[int]] = [[0]]
    used = widths[0]
    for index in range(1, len(widths)):
        if len(parts[-1]) > 1 and (index in breaks or used + gap + widths[index] > width):
            parts.append([0])
            used = widths[0]
        parts[-1].append(index)
        used += gap + widths[index]
    return parts
