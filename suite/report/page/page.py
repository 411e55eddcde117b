"""The results as one HTML file that opens offline: everything is in it, and nothing is fetched.

Without JavaScript all tables are there; with it they can be filtered, sorted and asked for the records behind them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from suite.report.page import statements
from suite.report.page.behind import SPEED, page_records
from suite.report.page.budget import budget_steps, budget_tables
from suite.report.page.commands import commands
from suite.report.page.measurements import page_rows, shown_columns
from suite.report.page.statements import Names
from suite.report.source import Source
from suite.tables.columns import COLUMNS, View
from suite.tables.comparison import comparison
from suite.tables.quantities import MISSING
from suite.tables.settings import on_drive
from suite.tables.sheet import Block, Sheet

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
_OF_MEASUREMENTS = "measurements.js"

FACETS = ("dataset", "setting", "optimizer", "device", "status")
PICTURES = ("throughput_by_bytes", "throughput_by_budget")
"""The figures that the page opens with."""
CAPTIONS = {
    "throughput_by_bytes": "Throughput by device bytes, relative to the baseline, with intervals and the noise band",
    "throughput_by_budget": "Throughput of rows on a drive by host budget, beside all rows in RAM, with intervals",
    "quality_over_time": "Loss and AUROC while training, by samples and by seconds",
    "miss_ratio": "Misses by cache size, simulated, with the optimum",
    "memory": "Memory by tier and purpose",
    "quality_by_bytes": "AUROC of approximate tables by their bytes, under the line of the exact baseline",
}


def page(source: Source, sheets: Sequence[Sheet], svgs: Mapping[str, str], root: Path) -> str:
    """The page as HTML: a pure function of its arguments.

    `svgs` has the figures by name. Links to records are relative to `root`.

    Raises:
        ValueError: a figure is no SVG.
    """
    groups = source.groups
    records, environments = page_records(source, root)
    positions = {key: position for position, key in enumerate(records)}
    # rows on a drive have tables of their own: columns of this one say other things of them
    rows = page_rows([group for group in groups if not on_drive(group)], positions)
    shown = shown_columns(rows)
    budgets = budget_tables(groups)
    names = Names(groups)
    drawn = _figures(svgs)
    scripts = [name for name in _SCRIPTS if rows or name != _OF_MEASUREMENTS]
    script = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in scripts)
    carried = {
        "records": list(records.values()),
        "environments": environments,
        "headers": {column.words: number for number, column in enumerate(COLUMNS)} | {SPEED: len(COLUMNS)},
        "definitions": {column.words: column.definition for column in COLUMNS},
        "views": {
            view.value: [column.words for column in COLUMNS if view is View.ALL or view in column.views]
            for view in View
        },
        "steps": budget_steps(groups),
        "leaderboards": [table.carried(positions) for table in budgets],
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
        columns=[(at, COLUMNS[at]) for at in shown],
        rows=rows,
        facets={name: list(dict.fromkeys(row.facets[name] for row in rows)) for name in FACETS},
        views=[view.value for view in View],
        devices=list(dict.fromkeys(map(names.device, groups))),
        newest=statements.newest(source),
        statement=statements.device_statement(groups),
        record_count=len(source.records),
        simulation_count=len(source.simulations),
        failures=statements.failures(groups),
        problems=statements.problems(source, root),
        budgets=budgets,
        sheets=[replace(sheet, blocks=tuple(map(without_empty_columns, sheet.blocks))) for sheet in sheets],
        comparisons=comparison(groups).blocks,
        commands=commands(groups),
        not_measured=statements.not_measured(groups),
        citation=statements.citation(source),
        project=statements.PROJECT,
        behind=lambda line: " ".join(str(positions[key]) for key in line.keys),
    )


def without_empty_columns(block: Block) -> Block:
    """A block less the columns that have nothing to show in any line."""
    kept = [at for at in range(len(block.heads)) if any(line.cells[at] != MISSING for line in block.lines)]
    return replace(
        block,
        heads=tuple(block.heads[at] for at in kept),
        lines=tuple(replace(line, cells=tuple(line.cells[at] for at in kept)) for line in block.lines),
    )


def _figures(svgs: Mapping[str, str]) -> list[tuple[str, str, Markup]]:
    """Name, caption and SVG: those known in the order of their captions, then by name."""
    known = list(CAPTIONS)
    order = sorted(svgs, key=lambda name: (known.index(name) if name in known else len(known), name))
    return [(name, CAPTIONS.get(name, name.replace("_", " ")), _inline(name, svgs[name])) for name in order]


def _json(value: object) -> Markup:
    """JSON for a `<script>` of data: no text in it can end that element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _inline(name: str, svg: str) -> Markup:
    """An SVG without its prolog, its ids told apart from those of the other figures.

    Raises:
        ValueError: it has no `<svg`.
    """
    start = svg.find("<svg")
    if start < 0:
        raise ValueError(f"figure {name} is no SVG: write it with matplotlib's savefig(format='svg')")
    text = re.sub(r'\bid="', f'id="{name}-', svg[start:])
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return Markup(text.replace("url(#", f"url(#{name}-"))
