"""Sheets as Markdown, CSV and LaTeX. Pure functions of a sheet: the same records always give the same files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from suite.records.store import write_atomically
from suite.report.sheets.sheet import Block, Head, Sheet
from suite.tables.comparison import escaped, table

_WIDE_CELL = 18
"""Characters above which a text cell of a LaTeX table is broken into lines."""
_BROKEN_TEXT = r">{\raggedright\arraybackslash}p{9em}"
_LINE_END = r"\\"
_LINE_CHARACTERS = 90
"""That a line of an upright page holds in the tables' type; wider tables lie on their side."""
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_\allowbreak{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "`": r"\textasciigrave{}",
        '"': r"\textquotesingle{}\textquotesingle{}",
        "'": r"\textquotesingle{}",
        "=": r"=\allowbreak{}",
        # at the start of a row these would be an argument of the line end before it
        "[": r"{[}\allowbreak{}",
        "]": r"{]}",
        "*": r"{*}",
        # two would become a dash
        "-": r"{-}",
    }
)


def write_sheets(sheets: Iterable[Sheet], folder: Path) -> list[Path]:
    """Write every sheet as `name.md`, `name.csv` and `name.tex`.

    Args:
        sheets: From `suite.report.sheets.all_sheets.sheets`.
        folder: Created if it is missing.

    Returns:
        The files, in order of sheets.

    Raises:
        StoreError: a file cannot be written; an earlier one of that name is still whole.
    """
    files = []
    for sheet in sheets:
        for suffix, text in (("md", to_markdown(sheet)), ("csv", to_csv(sheet)), ("tex", to_latex(sheet))):
            path = folder / f"{sheet.name}.{suffix}"
            write_atomically(path, text)
            files.append(path)
    return files


def to_markdown(sheet: Sheet) -> str:
    """Title, legend, and per block its heading, facts, table and notes."""
    parts = [f"# {escaped(sheet.title)}", escaped(" ".join(sheet.legend))]
    for block in sheet.blocks:
        if block.heading:
            parts.append(f"## {escaped(block.heading)}")
        if block.facts:
            parts.append(_items(block.facts))
        parts.append(
            table(
                [head.words for head in block.heads],
                [line.cells for line in block.lines],
                text=[index for index, head in enumerate(block.heads) if head.text],
            )
        )
        if block.notes:
            parts += ["Notes:", _items(block.notes)]
    return "\n\n".join(parts) + "\n"


def to_csv(sheet: Sheet) -> str:
    """All blocks under one header: raw numbers in SI units, empty where there is no value."""
    text: str = sheet.frame.to_csv(index=False, float_format="%.12g", lineterminator="\n")
    return text


def to_latex(sheet: Sheet) -> str:
    r"""A fragment for `\input`: a longtable per block, with booktabs rules; pages break inside tables.

    Labels are `tab:NAME-1`, `tab:NAME-2`, ... by block. A sheet too wide for an upright page lies on its side.
    """
    tables = [_latex_block(sheet, block, f"tab:{sheet.name}-{number}") for number, block in enumerate(sheet.blocks, 1)]
    wide = any(sum(_widths(block)) + len(block.heads) > _LINE_CHARACTERS for block in sheet.blocks)
    return "\n".join(
        [
            r"% Needs \usepackage{array,booktabs,longtable,lscape,textcomp}; other than Latin script: XeLaTeX.",
            *([r"\begin{landscape}"] if wide else []),
            r"\begingroup\scriptsize\sloppy\setlength{\tabcolsep}{2pt}",
            rf"\noindent {escape_latex(' '.join(sheet.legend))}\par",
            *tables,
            r"\endgroup",
            *([r"\end{landscape}"] if wide else []),
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands; lines may break inside the names of systems."""
    return re.sub(r",(?=[A-Za-z])", r",\\allowbreak{}", text.translate(_LATEX))  # not inside of numbers


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def _latex_block(sheet: Sheet, block: Block, label: str) -> str:
    table = pd.DataFrame(
        [[escape_latex(cell) for cell in line.cells] for line in block.lines],
        columns=[_latex_head(head, width) for head, width in zip(block.heads, _widths(block), strict=True)],
    )
    caption = sheet.title + (f". {block.heading}" if block.heading else "")
    text: str = table.style.hide(axis="index").to_latex(
        column_format=_column_format(block),
        hrules=True,
        environment="longtable",
        caption=escape_latex(caption),
        label=label,
    )
    remarks = [rf"\noindent {escape_latex(sentence)}\par" for sentence in (*block.facts, *block.notes)]
    return "\n".join([text.rstrip("\n"), *remarks])


def _latex_head(head: Head, width: int) -> str:
    """The words of a column in lines no longer than what stands below them."""
    lines = [escape_latex(line) for line in textwrap.wrap(head.words, width, break_long_words=False)]
    return rf"\shortstack[{'l' if head.text else 'r'}]{{{_LINE_END.join(lines)}}}"


def _column_format(block: Block) -> str:
    """Numbers as wide as they are; text too, up to a width from which it is broken into lines."""
    longest = [max((len(line.cells[index]) for line in block.lines), default=0) for index in range(len(block.heads))]
    return "".join(
        "r" if not head.text else "l" if cell <= _WIDE_CELL else _BROKEN_TEXT
        for head, cell in zip(block.heads, longest, strict=True)
    )


def _widths(block: Block) -> list[int]:
    """Characters by column: of its longest cell or, if that is more, of the longest word of its head."""
    widths = []
    for index, head in enumerate(block.heads):
        cell = max((len(line.cells[index]) for line in block.lines), default=0)
        widths.append(max(min(cell, _WIDE_CELL) if head.text else cell, *map(len, head.words.split())))
    return widths
