"""The page is well formed and made from records alone: every table, verdict, figure and link, and no other markup."""

import base64
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from suite.records.groups import group_records
from suite.records.record import Record
from suite.report.publish import Source, page, sheets
from tests.browser.page_scenes import MARKUP, SCRIPT, fabricated_records
from tests.unit.suite.fabricate import cpu_run, gpu_run

SVG = (
    '<?xml version="1.0"?><!DOCTYPE svg><svg><defs><clipPath id="clip"/></defs>'
    '<g clip-path="url(#clip)"/><use href="#clip"/></svg>'
)


def made(records: list[Record], **svgs: str) -> str:
    groups = tuple(group_records(records))
    files = {record.key: Path("/runs/records") / f"{record.key}.json" for group in groups for record in group.records}
    source = Source(groups=groups, files=files)
    return page(source, sheets(groups), svgs, Path("/runs/out"))


class Elements(HTMLParser):
    """Open elements that are never closed, and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_every_id_is_its_own() -> None:
    found = Elements(made(fabricated_records(), throughput_by_bytes=SVG, miss_ratio=SVG))
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))


def test_every_cell_of_every_sheet_is_on_the_page_with_the_number_it_sorts_by() -> None:
    groups = group_records([*gpu_run(), *cpu_run()])
    cells = re.findall(r'<td[^>]* data-value="([^"]*)">([^<]+)</td>', made([*gpu_run(), *cpu_run()]))
    texts = [unescape(text) for _, text in cells]
    expected = [
        cell
        for sheet in sheets(groups)
        for block in sheet.tables
        for line in block.shown((*block.columns, *block.more)).itertuples(index=False)
        for cell in line
    ]
    assert texts == expected
    assert ("0.95", "95.00 %") in cells


def test_page_fetches_nothing_and_runs_its_own_script_alone() -> None:
    text = made(fabricated_records())
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in text
    assert "default-src 'none'" in text
    assert not re.search(r'(?:src|href)="https?:', text)


def test_markup_in_names_and_reasons_is_text() -> None:
    text = made(fabricated_records())
    assert MARKUP not in text and SCRIPT not in text
    assert MARKUP in unescape(text) and SCRIPT in unescape(text)
    assert "img" not in Elements(text).names
