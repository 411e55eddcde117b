"""What every published table is made of, and how it is written as Markdown, CSV and LaTeX.

A sheet is made once and shown in many formats, so that they cannot disagree. The same records give the same files.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from suite.records.groups import device_title
from suite.records.record import Record
from suite.records.shown import printable
from suite.records.store import write_atomically
from suite.tables.quantities import MISSING

_Row = TypeVar("_Row")
_WIDE_CELL = 18
"""Characters above which a text cell of a LaTeX table is broken into lines."""
_BROKEN_TEXT = r">{\raggedright\arraybackslash}p{9em}"
_LINE_END = r" \\"


@dataclass(frozen=True, kw_only=True)
class Column(Generic[_Row]):
    """A column and how it shows a row: as people read it; `n/a` where there is no value.

    Attributes:
        words: Of its head; a narrow terminal may break between them.
        text: It holds text, set flush left.
        repeats: Of a table too wide for a terminal every part has it.
    """

    words: str
    show: Callable[[_Row], str]
    text: bool = False
    repeats: bool = False


def field(words: str, name: str, show: Callable[[Any], str] = str, *, text: bool = False) -> Column[Mapping[str, Any]]:
    """A column of rows that are raw numbers by name."""
    return Column(words=words, show=lambda row: show(row[name]), text=text)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a block: cells as people read them, and the keys of the records behind it."""

    cells: tuple[str, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """A table of one setting and machine.

    Attributes:
        heading: What tells it from the others; empty where it belongs to the block before it, or is the only one.
        verdict: What follows from the rows, a sentence each.
        facts: What holds for the whole block, a sentence each.
        notes: By title, what a reader has to know beside the numbers.
    """

    heading: str = ""
    verdict: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    heads: tuple[Column[Any], ...]
    lines: tuple[Line, ...]
    notes: Mapping[str, tuple[str, ...]] = default(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A published table.

    Attributes:
        name: Of its files, without suffix.
        legend: What holds for all blocks, a sentence each.
        frame: The same rows as raw numbers in SI units, empty where there is no value.
    """

    name: str
    title: str
    legend: tuple[str, ...]
    blocks: tuple[Block, ...]
    frame: pd.DataFrame


def block(
    columns: Iterable[Column[_Row]],
    rows: Iterable[tuple[_Row, Iterable[Record]]],
    *,
    heading: str = "",
    verdict: Sequence[str] = (),
    facts: Iterable[str] = (),
    notes: Mapping[str, Iterable[str]] | None = None,
) -> Block:
    """A block of rows with the records behind each; what has nothing to show is left out, a column or a note."""
    columns, pairs = tuple(columns), tuple(rows)
    cells = [[column.show(row) for column in columns] for row, _ in pairs]
    kept = [at for at in range(len(columns)) if not cells or any(line[at] != MISSING for line in cells)]
    return Block(
        heading=heading,
        verdict=tuple(verdict),
        facts=tuple(facts),
        heads=tuple(columns[at] for at in kept),
        lines=tuple(
            Line(cells=tuple(line[at] for at in kept), keys=tuple(run.key for run in runs))
            for line, (_, runs) in zip(cells, pairs, strict=True)
        ),
        notes={title: found for title, said in (notes or {}).items() if (found := tuple(dict.fromkeys(said)))},
    )


SETTING_COLUMNS = (
    *("kind", "workload", "data", "scale", "device", "host", "threads", "ranks", "optimizer", "tf32", "lr", "eps"),
    *("batch_size", "embedding_dim", "max_rows", "cache_ratio", "device_budget_bytes", "host_budget_bytes", "seed"),
    *("setting", "source"),
)
"""What a line of raw numbers begins with."""


def raw_frame(lines: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Rows of raw numbers in SI units: the setting, a sheet's own columns, then the keys of the records.

    Bytes stay whole where some are missing.
    """
    own = (name for name in chain(*lines) if name != "records")
    return pd.DataFrame(list(lines), columns=[*dict.fromkeys((*SETTING_COLUMNS, *own, "records"))]).convert_dtypes()


def setting_numbers(runs: Sequence[Record]) -> dict[str, object]:
    """What every line of raw numbers begins with, and the keys of the records behind it."""
    cell, environment = runs[0].cell, runs[0].environment
    return {
        **{name: getattr(cell, name) for name in SETTING_COLUMNS if hasattr(cell, name)},
        "kind": "virtual device" if runs[0].on_virtual_device else "measured",
        "device": device_title(cell, environment),
        "host": environment.cpu,
        "threads": environment.threads,
        "records": " ".join(run.key for run in runs),
    }


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
    for one in sheet.blocks:
        parts += [f"## {_escaped(one.heading)}"] if one.heading else []
        parts += [f"> {_escaped(' '.join(one.verdict))}"] if one.verdict else []
        parts += [_items(one.facts)] if one.facts else []
        rules = ["---" if head.text else "---:" for head in one.heads]
        rows = ([head.words for head in one.heads], rules, *(line.cells for line in one.lines))
        parts.append("\n".join("| " + " | ".join(map(_escaped, cells)) + " |" for cells in rows))
        for title, sentences in one.notes.items():
            parts += [f"{_escaped(title)}:", _items(sentences)]
    return "\n\n".join([*parts, _items(sheet.legend)]) + "\n"


def to_csv(sheet: Sheet) -> str:
    """All blocks under one header: raw numbers in SI units, empty where there is no value."""
    return csv_text(sheet.frame, float_format="%.12g")


def csv_text(frame: pd.DataFrame, *, float_format: str | None = None) -> str:
    """A frame as CSV in which a spreadsheet finds no formula: texts that begin like one get an apostrophe before."""
    texts = {name: frame[name].map(_no_formula) for name in frame.select_dtypes(["object", "string"])}
    shown = frame.assign(**texts).rename(columns=_no_formula)
    return str(shown.to_csv(index=False, float_format=float_format, lineterminator="\n"))


def _no_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def to_latex(sheet: Sheet) -> str:
    r"""A fragment for `\input`: a longtable per block, with booktabs rules; pages break inside tables.

    Labels are `tab:NAME-1`, `tab:NAME-2`, ... by block. Pages lie on their side: tables are wide.
    """
    tables = [_latex_block(sheet, one, f"tab:{sheet.name}-{number}") for number, one in enumerate(sheet.blocks, 1)]
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
    column = pd.DataFrame({"text": [" ".join(printable(text).split()) for text in texts]})
    written = column.style.hide(axis="index").hide(axis="columns").format(escape="latex").to_latex()
    lines = [line.removesuffix(_LINE_END) for line in written.splitlines()[1:-1]]
    # Braces: a row that began with [ or * would be an argument of the line end before it, and two - make a dash.
    braced = [re.sub(r"([\[*-])", r"{\1}", line) for line in lines]
    return [re.sub(r"(\\_|=|{\[}|,(?=[A-Za-z]))", r"\1\\allowbreak{}", line) for line in braced]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(printable(text).split())
    # `*` would otherwise open emphasis, `|` a cell, `<` a tag, `](` a link, `[` at the start of a line a definition of
    # one; `_` inside names does not
    return re.sub(r"([\\|*<`]|(?<=\])\(|^\[)", r"\\\1", line)


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(sentence)}" for sentence in sentences)


def _paragraphs(escaped: Iterable[str]) -> list[str]:
    return [rf"\noindent {sentence}\par" for sentence in escaped]


def _latex_block(sheet: Sheet, one: Block, label: str) -> str:
    title = sheet.title + (f". {one.heading}" if one.heading else "")
    heads = [head.words.split() for head in one.heads]
    said = [*one.verdict, *one.facts, *chain(*((f"{title}:", *words) for title, words in one.notes.items()))]
    escaped = iter(escape_latex([title, *chain(*heads), *chain(*(line.cells for line in one.lines)), *said]))
    caption = next(escaped)
    columns = [
        rf"\shortstack[{'l' if head.text else 'r'}]{{{_LINE_END.strip().join(islice(escaped, len(words)))}}}"
        for head, words in zip(one.heads, heads, strict=True)
    ]
    table = pd.DataFrame([list(islice(escaped, len(columns))) for _ in one.lines], columns=columns)
    # Numbers are as wide as they are; text too, up to a width from which it is broken into lines.
    longest = [max(map(len, cells)) for cells in zip(*(line.cells for line in one.lines), strict=True)]
    aligned = "".join(
        "r" if not head.text else "l" if letters <= _WIDE_CELL else _BROKEN_TEXT
        for head, letters in zip(one.heads, longest, strict=True)
    )
    text: str = table.style.hide(axis="index").to_latex(
        column_format=aligned, hrules=True, environment="longtable", caption=caption, label=label
    )
    return "\n".join([text.rstrip("\n"), *_paragraphs(escaped)])
