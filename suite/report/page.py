"""The results as one HTML file that opens offline: everything is in it, and nothing is fetched.

Without JavaScript all tables are there; with it they sort and filter. Every row links to the records behind it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from suite.report.figures import CAPTIONS
from suite.tables.settings import caveat
from suite.tables.sheet import ResultTable, Sheet
from suite.tables.statistics import Estimate

if TYPE_CHECKING:
    from suite.report.publish import Source


_FOLDER = Path(__file__).parent


def page(source: Source, sheets: Sequence[Sheet], svgs: Mapping[str, str], root: Path) -> str:
    """The page as HTML: a pure function of its arguments.

    `sheets` are of the source's groups, the comparison first. `svgs` has the figures by name. Links to records are
    relative to `root`.
    """
    links = {key: quote(Path(os.path.relpath(file, root)).as_posix()) for key, file in source.files.items()}
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        # the trailing newlines of `<script>` count: the browser hashes all between the tags
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        sheets=sheets,
        caveats=list(dict.fromkeys(filter(None, map(caveat, source.groups)))),
        figures=[(words, _inline(name, svgs[name])) for f, words in CAPTIONS.items() if (name := f.__name__) in svgs],
        records=len(source.records),
        simulations=len(source.simulations),
        newest=max(record.started_at for record in source.records)[:10],
        cells=lambda table: _cells(table, links),
    )


def _cells(table: ResultTable, links: Mapping[str, str]) -> dict[str, Any]:
    """Columns of a table, and per line its cells, each with what it sorts by, and links to its records."""
    shown = table.shown((*table.columns, *table.more))
    texts = shown.itertuples(index=False, name=None)
    return {
        "columns": list(shown.columns),
        "rows": [
            (
                [(text, _sorted_by(line.get(column.name))) for column, text in zip(shown.columns, cells, strict=True)],
                [links[key] for key in str(line.get("records", "")).split() if key in links],
            )
            for line, cells in zip(table.lines, texts, strict=True)
        ],
    }


def _sorted_by(value: object) -> object:
    number = value.value if isinstance(value, Estimate) else value
    return "" if number is None or (isinstance(number, float) and math.isnan(number)) else number


def _inline(name: str, svg: str) -> Markup:
    """An SVG without its prolog, its ids told apart from those of the other figures."""
    text = re.sub(r'\bid="', f'id="{name}-', svg[svg.index("<svg") :])
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return Markup(text.replace("url(#", f"url(#{name}-"))
