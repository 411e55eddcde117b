"""What the tests in a browser share: what the page shows, and what the records say."""

from __future__ import annotations

from suite.records.groups import Group
from suite.report.page.statements import facets
from suite.tables.columns import COLUMNS
from suite.tables.quantities import MISSING
from suite.tables.rows import merged_rows
from tests.browser.chromium import Browser, Page

ALL = "columns=all+columns"


IDENTITY = ("system", "dataset", "setting", "optimizer", "device")


def table(browser: Browser) -> dict[tuple[str, ...], dict[str, str]]:
    """The main table's visible cells by header, by what identifies a row."""
    heads = browser.heads()
    lines = [dict(zip(heads, row, strict=True)) for row in browser.rows()]
    found = {tuple(line[name] for name in IDENTITY): line for line in lines}
    assert len(found) == len(lines)
    return found


def expected_rows(page: Page) -> dict[tuple[str, ...], dict[str, str]]:
    """The same from the records, with every column that a row has something to show in."""
    shown = {}
    for group in page.source.groups:
        for row in merged_rows(group):
            shown[(row.system, *identity_of(page, group))] = {column.words: column.show(row) for column in COLUMNS}
    empty = {column.words for column in COLUMNS if {line[column.words] for line in shown.values()} == {MISSING}}
    return {key: {words: text for words, text in line.items() if words not in empty} for key, line in shown.items()}


def lines_of(browser: Browser) -> list[dict[str, str]]:
    """Visible rows of the main table in order, by header."""
    heads = browser.heads()
    return [dict(zip(heads, row, strict=True)) for row in browser.rows()]


def popover(browser: Browser, *, row: int, header: str) -> tuple[list[list[str]], list[str], str]:
    """Lines of the popover behind a number, its links resolved, and all its text."""
    found: tuple[list[list[str]], list[str], str] = browser.run(
        """const table = document.getElementById('measurements-table');
           const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
           table.tBodies[0].rows[arguments[0]].cells[heads.indexOf(arguments[1])].querySelector('button').click();
           const box = document.getElementById('behind');
           return [[...box.querySelectorAll('tbody tr')].map(line => [...line.cells].map(cell => cell.textContent)),
                   [...box.querySelectorAll('a')].map(link => link.href), box.textContent]""",
        row,
        header,
    )
    return found


def colours(browser: Browser) -> list[float]:
    """Brightness of the grounds of page, table head and row head, from 0 to 1."""
    found = []
    for selector in ("body", "#measurements-table thead th", "#measurements-table tbody th"):
        text = browser.run("return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", selector)
        found.append(sum(int(part) for part in text.removeprefix("rgb(").rstrip(")").split(",")) / 765)
    return found


def fits_sideways(browser: Browser) -> bool:
    widths = browser.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    browser.run("scrollTo(500, 0)")
    moved = browser.run("const x = scrollX; scrollTo(0, 0); return x")
    return widths[0] <= widths[1] and moved == 0


def identity_of(page: Page, group: Group) -> tuple[str, ...]:
    return tuple(facets(page.source.groups)[group.key].values())
