"""The results as one HTML file that opens offline: everything is in it, and nothing is fetched.

Without JavaScript all tables are there; with it they can be filtered, sorted and asked for the records behind them.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from suite.records.groups import Group
from suite.report.page import statements
from suite.report.page.behind import SPEED, key_of, page_records
from suite.report.page.commands import commands
from suite.report.source import Source
from suite.report.standings import leaderboards
from suite.tables.columns import COLUMNS, View
from suite.tables.quantities import MISSING, binary_bytes
from suite.tables.rows import Row, merged_rows, one_line
from suite.tables.settings import on_drive
from suite.tables.sheet import Sheet

_FOLDER = Path(__file__).parent


def _breakable(name: str) -> Markup:
    """A system's name that may break at an underscore or a comma, or before its variant."""
    return Markup("<wbr>").join(re.split(r"(?<=[_,])|(?=\[)", name))


_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["breakable"] = _breakable
_SCRIPTS = ("state.js", "scheme.js", "behind.js", "measurements.js", "budget.js")
"""In order: each uses what those before it declare."""

FACETS = ("dataset", "setting", "optimizer", "device", "status")
PICTURES = ("throughput_by_bytes", "throughput_by_budget")
"""The figures that the page opens with."""
CAPTIONS = {
    "throughput_by_bytes": "Throughput by device bytes, relative to the baseline, with intervals and the noise band",
    "throughput_by_budget": "Throughput of rows on a drive by host budget, beside all rows in RAM, with intervals",
    "miss_ratio": "Misses by cache size, simulated, with the optimum",
    "quality_by_bytes": "AUROC of approximate tables by their bytes, under the line of the exact baseline",
}
AGAIN = "The baseline a second time, in the same turns: how far this row lies from 1 is noise."


@dataclass(frozen=True, kw_only=True)
class PageRow:
    """A row of the main table.

    Attributes:
        facets: What it can be filtered by.
        records: Positions of those behind it in the list that the page carries.
    """

    row: Row
    facets: dict[str, str]
    records: tuple[int, ...]

    @property
    def remark(self) -> str:
        """What a reader has to know beside the numbers."""
        row = self.row
        reason = f"{row.status.value}: {one_line(row.reason)}" if row.reason else ""
        remarks = (AGAIN if row.again else "", reason, *row.notes)
        return " ".join(f"{remark.rstrip('.')}." for remark in remarks if remark)


def page_rows(groups: Sequence[Group], positions: Mapping[str, int]) -> tuple[PageRow, ...]:
    """Rows of all groups in order.

    `positions` has those of every record in the list that the page carries, by key.
    """
    named, made = statements.facets(groups), []
    for group in groups:
        for row in merged_rows(group):
            keys = [key_of(record, row) for record in row.records]
            made.append(
                PageRow(
                    row=row,
                    facets={**named[group.key], "status": row.status.value},
                    records=tuple(positions[key] for key in keys if key in positions),
                )
            )
    return tuple(made)


def page(source: Source, comparison: Sheet, sheets: Sequence[Sheet], svgs: Mapping[str, str], root: Path) -> str:
    """The page as HTML: a pure function of its arguments.

    `comparison` and `sheets` are of the source's groups. `svgs` has the figures by name. Links to records are relative
    to `root`.
    """
    groups = source.groups
    records, environments = page_records(source, root)
    positions = {key: position for position, key in enumerate(records)}
    # rows on a drive have tables of their own: columns of this one say other things of them
    rows = page_rows([group for group in groups if not on_drive(group)], positions)
    budgets = sorted({budget for one in leaderboards(groups) for budget in one.budgets})
    drawn = [(name, caption, _inline(name, svgs[name])) for name, caption in CAPTIONS.items() if name in svgs]
    script = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    carried = {
        "records": list(records.values()),
        "environments": environments,
        "headers": {column.words: number for number, column in enumerate(COLUMNS)} | {SPEED: len(COLUMNS)},
        "definitions": {column.words: column.definition for column in COLUMNS},
        "views": {
            view.value: [column.words for column in COLUMNS if view is View.ALL or view in column.views]
            for view in View
        },
        "budgets": [(budget, binary_bytes(budget)) for budget in budgets],
    }
    return _TEMPLATES.get_template("page.html.j2").render(
        carried=_json(carried),
        # The trailing newlines of `<script>` count: the browser hashes all between the tags
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        verdicts=statements.verdicts(groups),
        picture=[figure for figure in drawn if figure[0] in PICTURES],
        figures=[figure for figure in drawn if figure[0] not in PICTURES],
        columns=[column for column in COLUMNS if any(column.show(one.row) != MISSING for one in rows)],
        rows=rows,
        facets={name: list(dict.fromkeys(row.facets[name] for row in rows)) for name in FACETS},
        views=[view.value for view in View],
        devices=list(dict.fromkeys(named["device"] for named in statements.facets(groups).values())),
        newest=max(source.records, key=lambda record: record.order).started_at[:10],
        statement=statements.device_statement(groups),
        record_count=len(source.records),
        simulation_count=len(source.simulations),
        failures=statements.failures(groups),
        problems=sorted((Path(os.path.relpath(one.path, root)).as_posix(), one.reason) for one in source.problems),
        sheets=sheets,
        comparisons=comparison.blocks,
        commands=commands(groups),
        behind=lambda line: " ".join(str(positions[key]) for key in line.keys),
    )


def _json(value: object) -> Markup:
    """JSON for a `<script>` of data: no text in it can end that element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _inline(name: str, svg: str) -> Markup:
    """An SVG without its prolog, its ids told apart from those of the other figures."""
    text = re.sub(r'\bid="', f'id="{name}-', svg[svg.index("<svg") :])
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return Markup(text.replace("url(#", f"url(#{name}-"))
