"""What the tests of the page share: the page as text, and what it carries."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

from suite.records.groups import group_records
from suite.report.page.page import page
from suite.report.source import Source
from suite.tables.comparison import comparison
from suite.tables.sheet import Block, Line, Sheet, field

PAGE = Path(__file__).resolve().parents[4] / "suite" / "report" / "page"


SVG = (
    '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/svg11.dtd">\n'
    '<svg xmlns="http://www.w3.org/2000/svg"><defs><clipPath id="clip"><path id="mark"/></clipPath></defs>'
    '<g clip-path="url(#clip)"><use href="#mark"/></g></svg>'
)


VOID = {"meta", "link", "input", "wbr", "br", "img"}


class Outline(HTMLParser):
    """Elements with their attributes, checked to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def source_of(records: list[Any]) -> Source:
    return Source(groups=tuple(group_records(records)))


def made(records: list[Any], **changes: Any) -> str:
    source = source_of(records)
    arguments = {"comparison": comparison(source.groups), "sheets": (), "svgs": {}, "root": Path("out")} | changes
    return page(source, **arguments)


def carried(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="carried">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def sheet(name: str = "paper", keys: tuple[str, ...] = ()) -> Sheet:
    block = Block(
        heading="Avazu & co",
        facts=("A fact.",),
        heads=(field("system", "system", text=True), field("it/s", "it/s")),
        lines=(Line(cells=("full_gpu", "12.5"), keys=keys), Line(cells=("others", "n/a"))),
        notes={"Notes": ("A note.",)},
    )
    return Sheet(
        name=name, title="The paper's layout", legend=("it = iteration.",), blocks=(block,), frame=pd.DataFrame()
    )
