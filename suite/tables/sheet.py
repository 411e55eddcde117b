"""A published table: lines of raw numbers, and columns that name, define and format them, as Markdown, CSV and LaTeX.

A line is a dictionary of raw numbers in SI units by column name; None is what does not exist or is not known. All
formats and the page show the same lines. The same records give the same files.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pandas as pd

from suite.records.command_line import printable
from suite.records.store import write_atomically
from suite.tables.formatting import MISSING
from suite.tables.statistics import Estimate

Line = Mapping[str, Any]
LEGEND: Final = (
    "GB = 1e9 bytes, MB = 1e6 bytes; KiB, MiB, GiB = powers of 1024; it = iteration (one batch), ~ = extrapolated; n/a "
    "= does not exist, or not known."
)
_HIDDEN: Final = ("noise", "auroc_noise", "accuracy_noise", "printed", "row")
"""Keys of a line that no file shows: the noise floor, that of a column, texts by column as their source prints them,
the row."""
_WIDE_CELL: Final = 18
"""Characters above which a text cell of a LaTeX table is broken into lines."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its name, its definition, and how its value is formatted.

    Attributes:
        words: Head of the column; a narrow terminal may break between words.
        name: Key of its value in a line, and in CSV.
        show: Formats a value that is known.
        definition: Stands in the legend where the column is shown.
        text: It holds text, set flush left.
        noisy: No digit is shown behind the first that noise moves: its own, `<name>_noise`, or the noise floor. `show`
            gets that as well.
    """

    words: str
    name: str
    show: Callable[..., str] = str
    definition: str = ""
    text: bool = False
    noisy: bool = False

    def cell(self, line: Line) -> str:
        """A line's value as people read it."""
        value = line.get(self.name)
        if self.name in line.get("printed", ()):
            return str(line["printed"][self.name])
        if value is None or value == "" or value != value:  # noqa: PLR0124 - not a number
            kernel = line.get("same_kernel_as") if self.noisy else None
            return MISSING if kernel is None else f"= {kernel}"
        return self.show(value, line.get(f"{self.name}_noise", line.get("noise"))) if self.noisy else self.show(value)


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of one setting and machine.

    Attributes:
        heading: Tells it from the others; empty where it belongs to the table before it, or is the only one.
        summary: Verdict that follows from the lines.
        caption: Setting, machine and method of the measurement.
        columns: The main ones.
        more: Further ones, which stand below them.
        unshown: Lines of raw numbers that CSV has beside those of the cells.
        notes: Remarks beside the numbers, a sentence each.
    """

    heading: str = ""
    summary: str = ""
    caption: str = ""
    columns: tuple[Column, ...]
    more: tuple[Column, ...] = ()
    lines: tuple[Line, ...]
    unshown: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    def shown(self, columns: Iterable[Column]) -> pd.DataFrame:
        """Cells as people read them, by the columns among these that have something to show."""
        cells = {column: [column.cell(line) for line in self.lines] for column in columns}
        return pd.DataFrame({column: texts for column, texts in cells.items() if set(texts) != {MISSING}}, dtype=object)

    @cached_property
    def frames(self) -> list[pd.DataFrame]:
        """Cells of the main columns, and those of the others where there are any."""
        first = self.columns[0]
        return [self.shown(columns) for columns in (self.columns, (first, *self.more)) if len(columns) > 1]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Tables that are published together: its name is that of its files, without suffix."""

    name: str
    title: str
    tables: tuple[ResultTable, ...]

    @property
    def legend(self) -> list[str]:
        """Units, and definitions of the columns that are shown, a sentence each."""
        shown = dict.fromkeys(chain(*(frame.columns for table in self.tables for frame in table.frames)))
        return [LEGEND, *(f"{column.words} = {column.definition}" for column in shown if column.definition)]

    @property
    def frame(self) -> pd.DataFrame:
        """All lines as raw numbers in SI units: the setting, the sheet's own columns, then the keys of the records."""
        lines = chain(*((*table.lines, *table.unshown) for table in self.tables))
        spread = [dict(chain(*(_spread(name, value).items() for name, value in line.items()))) for line in lines]
        own = (name for name in chain(*spread) if name not in ("records", *_HIDDEN))
        frame = pd.DataFrame(spread, columns=[*dict.fromkeys((*SETTING, *own, "records"))])
        return frame.drop_duplicates(ignore_index=True).convert_dtypes()  # bytes stay whole where some are missing


def _spread(name: str, value: object) -> dict[str, object]:
    """A value by its column of CSV; an estimate takes three."""
    if not isinstance(value, Estimate):
        return {name: value}
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


SETTING: Final = (
    *("kind", "workload", "data", "scale", "device", "host", "threads", "ranks", "optimizer", "tf32", "lr", "eps"),
    *("batch_size", "embedding_dim", "max_rows", "cache_ratio", "device_budget_bytes", "host_budget_bytes", "seed"),
    *("setting", "source"),
)
"""First keys of a line of raw numbers."""


def write_sheets(
    sheets: Iterable[Sheet], folder: Path, *, suffixes: Sequence[str] = ("md", "csv", "tex")
) -> tuple[Path, ...]:
    """Write every sheet as `name.md`, `name.csv` and `name.tex`, or as some of them. Returns the files.

    Raises:
        StoreError: a file cannot be written; an earlier one of that name is still whole.
    """
    formats = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
    files = []
    for sheet in sheets:
        for suffix in suffixes:
            files.append(folder / f"{sheet.name}.{suffix}")
            write_atomically(files[-1], formats[suffix](sheet))
    return tuple(files)


def to_markdown(sheet: Sheet) -> str:
    """Title, per table its heading, summary, caption, cells and notes, and the legend."""
    parts = [f"# {_markdown(sheet.title)}"]
    for table in sheet.tables:
        heads = (("## ", table.heading), ("> ", table.summary), ("", table.caption))
        parts += [f"{mark}{_markdown(text)}" for mark, text in heads if text]
        for frame in table.frames:
            rules = ["---" if column.text else "---:" for column in frame.columns]
            rows = ([column.words for column in frame.columns], rules, *frame.itertuples(index=False, name=None))
            parts.append("\n".join("| " + " | ".join(map(_markdown, row)) + " |" for row in rows))
        parts += [_items(table.notes)] if table.notes else []
    return "\n\n".join([*parts, _items(sheet.legend)]) + "\n"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    # `*` would open emphasis, `|` a cell, `<` a tag, `](` a link, `[` at the start of a line a definition of one; `_`
    # inside names does not
    return re.sub(r"([\\|*<`]|(?<=\])\(|^\[)", r"\\\1", " ".join(printable(text).split()))


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {_markdown(sentence)}" for sentence in sentences)


def to_csv(sheet: Sheet) -> str:
    """All tables under one header: raw numbers in SI units, empty where there is no value."""
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
    r"""A fragment for `\input`: a longtable per table, of the main columns, with booktabs rules.

    Labels are `tab:NAME-1`, `tab:NAME-2`, ... Pages lie on their side: tables are wide.
    """
    parts = [
        r"% Needs \usepackage[T1]{fontenc} and \usepackage{array,booktabs,longtable,lscape}; not only Latin: XeLaTeX.",
        r"\begin{landscape}",
        r"\begingroup\scriptsize\sloppy\setlength{\tabcolsep}{2pt}",
        rf"\noindent {latex(' '.join(sheet.legend))}\par",
    ]
    for number, table in enumerate(sheet.tables, 1):
        caption = latex(". ".join(text for text in (sheet.title, table.heading) if text))
        parts.append(_longtable(table.frames[0], caption, f"tab:{sheet.name}-{number}"))
        parts += [rf"\noindent {latex(text)}\par" for text in (table.summary, table.caption, *table.notes) if text]
    return "\n".join([*parts, r"\endgroup", r"\end{landscape}"]) + "\n"


def _longtable(frame: pd.DataFrame, caption: str, label: str) -> str:
    """Numbers are as wide as they are; text too, up to a width from which it is broken into lines."""
    wide = {column: column.text and frame[column].map(len).max() > _WIDE_CELL for column in frame.columns}
    aligned = [
        r">{\raggedright\arraybackslash}p{9em}" if wide[column] else "l" if column.text else "r"
        for column in frame.columns
    ]
    line_end = r" \\ "
    heads = [
        rf"\shortstack[{'l' if column.text else 'r'}]{{{line_end.join(map(latex, column.words.split()))}}}"
        for column in frame.columns
    ]
    shown = frame.map(latex).set_axis(heads, axis="columns")
    text: str = shown.to_latex(
        index=False, escape=False, column_format="".join(aligned), longtable=True, caption=caption, label=label
    )
    return text.rstrip("\n")


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    # Lines may break inside names. Braces: two - make a dash, and [ or * after a line's end are an argument of that.
    | {"_": r"\_\allowbreak{}", "=": r"=\allowbreak{}", "[": r"{[}\allowbreak{}", "*": "{*}", "-": "{-}"}
)


def latex(text: str) -> str:
    """Text that LaTeX prints as it is, on one line."""
    return " ".join(printable(text).split()).translate(_LATEX)
