"""The comparison in a terminal, whatever its width: columns are stacked before anything is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.records.groups import Group
from suite.tables.sections import COLUMNS, LEGEND, PUBLISHED_HEADERS, section


def render(console: Console, groups: Sequence[Group]) -> None:
    """Print every group's table with what belongs to it, then the legend."""
    for group in groups:
        content = section(group)
        _line(console, content.heading, style="bold")
        for label, text in content.facts:
            _line(console, f"{label}: {text}")
        if content.caveat:
            _line(console, f"On a CPU: {content.caveat}", style="yellow")
        breaks = [index for index, column in enumerate(COLUMNS) if column.explains][:1]
        aligned = [index for index, column in enumerate(COLUMNS) if column.text]
        _stacked(console, [column.header for column in COLUMNS], content.rows, text=aligned, breaks=breaks)
        for system, failure in content.failures:
            _line(console, f"{system}: {failure}", style="red")
        for system, note in content.notes:
            _line(console, f"{system}: {note}")
        if content.ranking:
            _line(console, f"{content.ranking_title}:")
            for place in content.ranking:
                _line(console, f"  {place}")
        if content.published:
            last = len(PUBLISHED_HEADERS) - 1
            _line(console, "Published rows, measured by others on other hardware", style="bold")
            _stacked(console, PUBLISHED_HEADERS, content.published, text=[0, last - 1, last], breaks=[last - 1])
            _line(console, content.published_note)
        console.line()
    _line(console, LEGEND, style="dim")


def _line(console: Console, text: str, *, style: str = "") -> None:
    # Text, not a string: names such as `cache[policy=lfu]` would be read as markup.
    console.print(Text(text, style=style), soft_wrap=False, highlight=False)


def _stacked(
    console: Console,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Sequence[int],
    breaks: Sequence[int],
) -> None:
    """Print one table, or several that repeat the first column, none wider than the terminal."""
    cells = [[header.replace(" ", "\n") for header in headers], *rows]
    widths = _widths(cells)
    gap = 2
    parts = [list(range(len(widths)))]
    if sum(widths) + gap * (len(widths) - 1) > console.width:
        gap = 1
        cells = [[_folded(line[0]), *line[1:]] for line in cells]
        parts = _parts(_widths(cells), width=console.width, gap=gap, breaks=breaks)
    for part in parts:
        # The box draws a blank between columns; the padding is the rest of the gap.
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=False)
        for index in part:
            table.add_column(
                Text(cells[0][index]),
                justify="left" if index in text else "right",
                vertical="top",
                # Names fold where they alone leave no room for a number; numbers never do.
                no_wrap=index not in text,
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
