"""Sheets as Markdown, CSV and LaTeX. Pure functions of a sheet: the same records always give the same files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path

import pandas as pd

from suite.records.store import write_atomically
from suite.tables.sheet import Block, Sheet

_WIDE_CELL = 18
"""Characters above which a text cell of a LaTeX table is broken into lines."""
_BROKEN_TEXT = r">{\raggedright\arraybackslash}p{9em}"
_LINE_END = r" \\"


def write_sheets(
    sheets: Iterable[Sheet], folder: Path, *, suffixes: Sequence[str] = ("md", "csv", "tex")
) -> tuple[Path, ...]:
    """Write every sheet as `name.md`, `name.csv` and `name.tex`, or as some of them. Returns the files.

    Raises:
        StoreError: a file cannot be written; an earlier one of that name is still whole.
    """
    files = []
    for sheet in sheets:
        for suffix in suffixes:
            files.append(folder / f"{sheet.name}.{suffix}")
            write_atomically(files[-1], _FORMATS[suffix](sheet))
    return tuple(files)


def to_markdown(sheet: Sheet) -> str:
    """Title, per block its heading, verdict, facts, table and notes, and the legend."""
    parts = [f"# {_escaped(sheet.title)}"]
    for block in sheet.blocks:
        parts += [f"## {_escaped(block.heading)}"] if block.heading else []
        parts += [f"> {_escaped(' '.join(block.verdict))}"] if block.verdict else []
        parts += [_items(block.facts)] if block.facts else []
        parts.append(_table(block))
        for notes in block.notes:
            parts += [f"{_escaped(notes.title)}:", _items(notes.sentences)]
    return "\n\n".join([*parts, _items(sheet.legend)]) + "\n"


def to_csv(sheet: Sheet) -> str:
    """All blocks under one header: raw numbers in SI units, empty where there is no value."""
    text: str = sheet.frame.to_csv(index=False, float_format="%.12g", lineterminator="\n")
    return text


def to_latex(sheet: Sheet) -> str:
    r"""A fragment for `\input`: a longtable per block, with booktabs rules; pages break inside tables.

    Labels are `tab:NAME-1`, `tab:NAME-2`, ... by block. Pages lie on their side: tables are wide.
    """
    tables = [_latex_block(sheet, block, f"tab:{sheet.name}-{number}") for number, block in enumerate(sheet.blocks, 1)]
    parts = [
        r"% Needs \usepackage[T1]{fontenc} and \usepackage{array,booktabs,longtable,lscape}; not only Latin: XeLaTeX.",
        r"\begin{landscape}",
        r"\begingroup\scriptsize\sloppy\setlength{\tabcolsep}{2pt}",
        *_paragraphs(escape_latex([" ".join(sheet.legend)])),
        *tables,
        r"\endgroup",
        r"\end{landscape}",
    ]
    return "\n".join(parts) + "\n"


_FORMATS: dict[str, Callable[[Sheet], str]] = {"md": to_markdown, "csv": to_csv, "tex": to_latex}


def escape_latex(texts: Iterable[str]) -> list[str]:
    """Texts as LaTeX prints them: pandas escapes what LaTeX reads as commands, and lines may break inside names."""
    column = pd.DataFrame({"text": [" ".join(text.split()) for text in texts]})
    written = column.style.hide(axis="index").hide(axis="columns").format(escape="latex").to_latex()
    lines = [line.removesuffix(_LINE_END) for line in written.splitlines()[1:-1]]
    # Braces: a row that began with [ or * would be an argument of the line end before it, and two - make a dash.
    braced = [re.sub(r"([\[*-])", r"{\1}", line) for line in lines]
    return [re.sub(r"(\\_|=|{\[}|,(?=[A-Za-z]))", r"\1\\allowbreak{}", line) for line in braced]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    # `*` would otherwise open emphasis, `|` a cell, `<` a tag; `_` inside names does not
    return re.sub(r"([\\|*<`])", r"\\\1", text)


def _table(block: Block) -> str:
    rules = ["---" if head.text else "---:" for head in block.heads]
    rows = ([head.words for head in block.heads], rules, *(line.cells for line in block.lines))
    return "\n".join("| " + " | ".join(map(_escaped, cells)) + " |" for cells in rows)


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(sentence)}" for sentence in sentences)


def _paragraphs(escaped: Iterable[str]) -> list[str]:
    return [rf"\noindent {sentence}\par" for sentence in escaped]


def _latex_block(sheet: Sheet, block: Block, label: str) -> str:
    caption = sheet.title + (f". {block.heading}" if block.heading else "")
    heads = [head.words.split() for head in block.heads]
    said = [
        *block.verdict,
        *block.facts,
        *(words for notes in block.notes for words in (f"{notes.title}:", *notes.sentences)),
    ]
    cells = [cell for line in block.lines for cell in line.cells]
    escaped = iter(escape_latex([caption, *chain(*heads), *cells, *said]))
    caption = next(escaped)
    columns = [
        rf"\shortstack[{'l' if head.text else 'r'}]{{{_LINE_END.strip().join(islice(escaped, len(lines)))}}}"
        for head, lines in zip(block.heads, heads, strict=True)
    ]
    table = pd.DataFrame([list(islice(escaped, len(columns))) for _ in block.lines], columns=columns)
    text: str = table.style.hide(axis="index").to_latex(
        column_format=_column_format(block), hrules=True, environment="longtable", caption=caption, label=label
    )
    return "\n".join([text.rstrip("\n"), *_paragraphs(escaped)])


def _column_format(block: Block) -> str:
    """Numbers as wide as they are; text too, up to a width from which it is broken into lines."""
    longest = [max((len(line.cells[at]) for line in block.lines), default=0) for at in range(len(block.heads))]
    return "".join(
        "r" if not head.text else "l" if cell <= _WIDE_CELL else _BROKEN_TEXT
        for head, cell in zip(block.heads, longest, strict=True)
    )
