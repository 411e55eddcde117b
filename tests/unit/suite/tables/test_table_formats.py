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

from suite.records.command_line import printable
from suite.records.groups import group_records
from suite.records.store import StoreError
from suite.report.publish import sheets
from suite.tables.sheet import Column, ResultTable, Sheet, csv_text, latex, to_csv, to_latex, to_markdown, write_sheets
from tests.unit.suite.fabricate import cpu_run, gpu_run
from tests.unit.suite.tables.disk_scenes import contest

NASTY = r"""a|b_c [x=1,y] * 50 % & $5 #1 {z} ~9 ^2 <b> \n `k` "q" 'r' --no-x"""
IN_LATEX = (
    r"a|b\_\allowbreak{}c {[}\allowbreak{}x=\allowbreak{}1,y] {*} 50 \% \& \$5 \#1 \{z\} \textasciitilde{}9 "
    r"""\textasciicircum{}2 <b> \textbackslash{}n `k` "q" 'r' {-}{-}no{-}x"""
)


LINKS = [
    "[click here](https://evil.example)",
    "![](https://evil.example/x.png)",
    "[cell]: https://evil.example",
    "<https://evil.example>",
    "two\nlines\n\n# heading",
    "a\r\n| b | c |",
]


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
            *(ResultTable(columns=columns, lines=({"system": text},), caption=text, notes=(text,)) for text in LINKS),
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


@pytest.fixture(scope="module")
def every_sheet() -> list[Sheet]:
    return [*everything(), nasty()]


def test_markdown_tables_read_back_as_the_cells_of_the_sheet(every_sheet):
    for sheet in every_sheet:
        tables = markdown_tables(to_markdown(sheet))
        frames = [frame for block in sheet.tables for frame in block.frames]
        for (head, *rows), table in zip(tables, frames, strict=True):
            assert head == [column.words for column in table.columns]
            assert rows == [[" ".join(printable(cell).split()) for cell in row] for row in table.to_numpy()]
    assert "\n| --- | ---: |\n" in to_markdown(nasty())


def test_texts_of_records_make_no_links_and_no_headings_in_markdown():
    tokens = MarkdownIt("commonmark").enable("table").parse(to_markdown(nasty()))
    kinds = [inner.type for token in tokens for inner in (token, *(token.children or ()))]
    assert not {"link_open", "image", "html_inline", "html_block"} & set(kinds)
    assert kinds.count("heading_open") == 2  # of the sheet and of its first table


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
                    assert line[name] == printable(str(value))  # bytes whole, text as it is


def test_latex_has_the_main_columns_every_character_as_it_is_and_labels_of_its_own(every_sheet):
    assert latex(NASTY) == IN_LATEX
    for sheet in every_sheet:
        text = to_latex(sheet)
        lines = text.split(" \\\\\n")
        main = [block.frames[0] for block in sheet.tables]
        for row in itertools.chain(*(table.to_numpy().tolist() for table in main)):
            assert any(line.endswith(" & ".join(map(latex, row))) for line in lines), row
        labels = re.findall(r"\\label{([^}]*)}", text)
        assert labels == [f"tab:{sheet.name}-{number}" for number in range(1, len(main) + 1)]


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
