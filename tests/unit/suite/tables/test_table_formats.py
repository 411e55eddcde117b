from __future__ import annotations

import csv
import io
import itertools
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from suite.records.groups import group_records
from suite.records.store import StoreError
from suite.report.sheets import sheets
from suite.tables.sheet import Column, ResultTable, Sheet, csv_text, to_csv, to_latex, to_markdown, write_sheets
from tests.unit.suite.fabricate import cpu_run, gpu_run
from tests.unit.suite.tables.disk_scenes import contest

NASTY = r"""a|b_c [x=1,y] * 50 % & $5 #1 {z} ~9 ^2 <b> \n `k` "q" 'r' --no-x"""
PLAIN_OF = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\allowbreak{}": "",
    **{f"{{{character}}}": character for character in "[*-"},
    **{f"\\{character}": character for character in "{}&%$#_"},
}


def everything() -> tuple[Sheet, ...]:
    return sheets(group_records([*gpu_run(), *cpu_run(), *contest()]))


def nasty() -> Sheet:
    """A sheet whose every text has what some format treats as markup."""
    columns = (Column(words="system|odd_one", name="system", text=True), Column(words="% of #1", name="share"))
    lines = (
        {"system": NASTY, "share": "1,234", "bytes": 2**60 + 1},
        {"system": "[starts=like,an argument]", "share": "4 %"},
        {"system": "*star", "share": None},
    )
    said = {"heading": f"Heading {NASTY}", "summary": f"Verdict {NASTY}", "caption": f"Caption {NASTY}"}
    return Sheet(
        name="nasty",
        title=f"Title {NASTY}",
        tables=(
            ResultTable(columns=columns, lines=lines, notes=(NASTY,), **said),
            ResultTable(columns=columns, lines=({"system": "b", "share": "2"},)),
        ),
    )


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Tables as a Markdown reader sees them: rows of cells, the head first."""
    tables: list[list[list[str]]] = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in itertools.pairwise(tokens):
        if before.type == "table_open":
            tables.append([])
        if before.type == "tr_open":
            tables[-1].append([])
        if token.type == "inline" and before.type in ("th_open", "td_open"):
            tables[-1][-1].append(words(token))
    return tables


def words(token: Token) -> str:
    """What is printed; markup that should be text shows up as anything but text."""
    assert {child.type for child in token.children or []} <= {"text", "text_special"}
    return "".join(child.content for child in token.children or [])


def latex_tables(text: str) -> list[tuple[str, list[list[str]]]]:
    """Column formats, and rows of raw cells between the last rule of the head and the end of a table."""
    found = []
    for table in re.findall(r"\\begin{longtable}(.*?)\\end{longtable}", text, flags=re.DOTALL):
        columns = table.splitlines()[0]
        body = table.split(r"\endlastfoot" + "\n")[1].strip().removesuffix(r"\\")
        rows = [re.split(r"(?<!\\)&", row) for row in re.split(r" \\\\\n", body)]
        found.append((columns, [[cell.strip() for cell in row] for row in rows]))
    return found


def plain(latex: str) -> str:
    """What escaped text prints."""
    pattern = "|".join(re.escape(escaped) for escaped in sorted(PLAIN_OF, key=len, reverse=True))
    return re.sub(pattern, lambda match: PLAIN_OF[match[0]], latex)


def column_count(columns: str) -> int:
    bare = re.sub(r">{[^}]*}p{[^}]*}", "l", columns.strip().removeprefix("{").removesuffix("}"))
    assert set(bare) <= {"l", "r"}
    return len(bare)


@pytest.fixture(scope="module")
def every_sheet() -> list[Sheet]:
    return [*everything(), nasty()]


def test_markdown_tables_read_back_as_the_cells_of_the_sheet(every_sheet):
    for sheet in every_sheet:
        tables = markdown_tables(to_markdown(sheet))
        frames = [frame for block in sheet.tables for frame in block.frames]
        for (head, *rows), table in zip(tables, frames, strict=True):
            assert head == [column.words for column in table.columns]
            assert rows == table.to_numpy().tolist()
    assert "\n| --- | ---: |\n" in to_markdown(nasty())


def test_csv_has_one_header_and_every_number_of_the_frame(every_sheet):
    for sheet in every_sheet:
        lines = list(csv.DictReader(io.StringIO(to_csv(sheet))))
        for line, (_, row) in zip(lines, sheet.frame.iterrows(), strict=True):
            assert list(line) == list(sheet.frame.columns)
            for name, value in row.items():
                if pd.isna(value):
                    assert line[name] == ""
                elif isinstance(value, float):
                    assert float(line[name]) == pytest.approx(value, rel=1e-11)
                else:
                    assert line[name] == str(value)  # bytes whole, text as it is


def test_latex_tables_read_back_as_the_cells_of_the_sheet_and_labels_are_its_own(every_sheet):
    for sheet in every_sheet:
        text = to_latex(sheet)
        main = [block.frames[0] for block in sheet.tables]
        for (columns, rows), table in zip(latex_tables(text), main, strict=True):
            assert column_count(columns) == len(table.columns)
            assert [[plain(cell) for cell in row] for row in rows] == table.to_numpy().tolist()
        labels = re.findall(r"\\label{([^}]*)}", text)
        assert labels == [f"tab:{sheet.name}-{number}" for number in range(1, len(main) + 1)]
        bare = re.sub(r"\\[\\{}%]", "", "\n".join(line for line in text.split("\n") if not line.startswith("%")))
        assert bare.count("{") == bare.count("}")


def test_table_that_cannot_be_written_is_a_sentence(tmp_path: Path):
    (tmp_path / "tables").write_text("")
    with pytest.raises(StoreError, match=r"comparison\.md"):
        write_sheets(everything(), tmp_path / "tables")


FORMULAS = ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(1)", "\x1b[2J=1"]


def test_spreadsheet_finds_no_formula_and_numbers_stay_numbers():
    frame = pd.DataFrame({"=name": FORMULAS, "number": [-1.5, 2.0, -3.0, 4.0, math.nan]})
    head, *lines = csv.reader(io.StringIO(csv_text(frame)))
    assert head == ["'=name", "number"]
    assert [line[0] for line in lines] == [*(f"'{text}" for text in FORMULAS[:4]), "\N{REPLACEMENT CHARACTER}[2J=1"]
    assert [line[1] for line in lines] == ["-1.5", "2.0", "-3.0", "4.0", ""]


LINKS = [
    "[click here](https://evil.example)",
    "![](https://evil.example/x.png)",
    "[cell]: https://evil.example",
    "<https://evil.example>",
    "two\nlines\n\n# heading",
    "a\r\n| b | c |",
]


def test_texts_of_records_make_no_links_lines_or_cells_in_markdown():
    columns = (Column(words="name", name="name", text=True), Column(words="share", name="share"))
    lines = tuple({"name": text, "share": text} for text in LINKS)
    block = ResultTable(columns=columns, lines=lines, caption=LINKS[0], notes=tuple(LINKS))
    sheet = Sheet(name="links", title="Links", tables=(block,))
    tokens = MarkdownIt("commonmark").enable("table").parse(to_markdown(sheet))
    kinds = [inner.type for token in tokens for inner in (token, *(token.children or ()))]
    assert not {"link_open", "image", "html_inline", "html_block"} & set(kinds)
    assert kinds.count("heading_open") == 1
    assert kinds.count("tr_open") == 1 + len(LINKS)
    assert kinds.count("td_open") == 2 * len(LINKS)
