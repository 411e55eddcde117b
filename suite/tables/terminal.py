"""Tables in a terminal, whatever its width: columns are stacked before anything is cut. The comparison is one."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.records.groups import RecordGroup
from suite.tables.columns import Columns
from suite.tables.comparison import comparison


def render(console: Console, groups: Sequence[RecordGroup], columns: Columns = Columns.MAIN) -> None:
    """Print every group's summary and table with what belongs to it, then the legend; with all columns, two tables."""
    sheet = comparison(groups)
    if columns is Columns.MAIN:
        sheet = replace(sheet, tables=tuple(replace(table, more=()) for table in sheet.tables))
    for table in sheet.tables:
        for text, style in ((table.heading, "bold"), (table.summary, ""), (table.caption, "dim")):
            if text:
                print_line(console, text, style=style)
        for frame in table.frames:
            print_table(
                console,
                [column.words.replace(" ", "\n") for column in frame.columns],
                [*frame.itertuples(index=False, name=None)],
                text=[index for index, column in enumerate(frame.columns) if column.text],
                repeats=range(1 + [column.name for column in frame.columns].index("system")),
            )
        for note in table.notes:
            print_line(console, note, indent=2)
        if table.notes:
            console.line()
    print_line(console, " ".join(sheet.legend) if groups else sheet.title, style="dim")


def print_line(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a sentence in lines that fit the console; lines after the first stand further in."""
    # Text, not a string: names such as `cache[policy=lfu]` would be read as markup.
    for number, line in enumerate(Text(text, style=style).wrap(console, console.width - 2 * indent)):
        line.rstrip()
        console.print(Text(" " * (indent * min(number + 1, 2))) + line, highlight=False)


def print_table(
    console: Console,
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    text: Collection[int] = (0,),
    repeats: Collection[int] = (0,),
    sections: Collection[int] = (),
) -> None:
    """Print one table, or several that repeat the first columns, none wider than the terminal.

    Args:
        console: The terminal.
        heads: Heads of the columns; a line break starts a new line.
        lines: A cell per column.
        text: Columns of names, which are set left; the others are numbers.
        repeats: The first columns, which all of these tables have.
        sections: Lines above which a rule is drawn.
    """
    # Names fold, then columns move closer, before a table becomes several.
    folded = [[_folded(cell) if index in text else cell for index, cell in enumerate(line)] for line in lines]
    parts, gap = [list(range(len(heads)))], 2
    for gap, cells in ((2, lines), (2, folded), (1, folded)):
        lines, widths = cells, _widths([heads, *cells])
        if sum(widths) + gap * (len(widths) - 1) <= console.width:
            break
    else:
        parts = _parts(widths, width=console.width, gap=gap, repeats=repeats)
    for part in parts:
        # The box draws a blank between columns; the padding is the rest of the gap.
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=False)
        for index in part:
            table.add_column(
                Text(heads[index]),
                justify="left" if index in text else "right",
                vertical="top",
                # Names fold where they alone leave no room for a number; numbers never do.
                no_wrap=index not in text,
                overflow="fold",
            )
        for number, line in enumerate(lines):
            if number in sections:
                table.add_section()
            table.add_row(*(Text(line[index]) for index in part))
        console.print(table, highlight=False)
        console.line()


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in zip(*cells, strict=True)]


def _folded(name: str) -> str:
    """A system's name with its variant below it, and a list with an item per line."""
    return re.sub(r",\s*", ",\n  ", name.replace("[", "\n ["))


def _parts(widths: Sequence[int], *, width: int, gap: int, repeats: Collection[int]) -> list[list[int]]:
    """Column indices by table: a new one, which begins with `repeats`, wherever the width runs out."""
    parts = [[*repeats]]
    for index in range(len(repeats), len(widths)):
        used = sum(widths[known] + gap for known in parts[-1])
        if len(parts[-1]) > len(repeats) and used + widths[index] > width:
            parts.append([*repeats])
        parts[-1].append(index)
    return parts
