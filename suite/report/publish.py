"""Command line: `python -m suite report`, which writes all that is published: the same records give the same files.

The page has everything in it and fetches nothing. Without JavaScript all tables are there; with it they sort and
filter. Every row links to the records behind it.
"""

import base64
import hashlib
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from suite.records.command_line import BadOption, ShownConsole, errors_told
from suite.records.groups import NOTE, PublishedRow, RecordGroup, group_records, mixes_virtual, published_rows
from suite.records.record import Record, Status
from suite.records.store import NotARecord, RecordStore, read_json, write_atomically
from suite.report.figures import CAPTIONS, figures
from suite.simulate.options import check_output
from suite.simulate.results import Simulation
from suite.tables.columns import PAPER, SYSTEM
from suite.tables.comparison import comparison
from suite.tables.formatting import count, duration, look
from suite.tables.rows import Row, merged_rows, remarks
from suite.tables.settings import cache_size, caption, caveat, headings, on_drive, sweeps
from suite.tables.sheet import Column, ResultTable, Sheet, write_sheets
from suite.tables.statistics import Estimate

PAGE = "index.html"
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Source:
    """Everything that gets published, read once.

    Attributes:
        groups: Comparison groups, sizes of a sweep from the smallest.
        files: File of every record, the newest of a key, by that.
        problems: Files that were skipped, and why.
        simulations: Replays of every policy by cache size, with the optimum.
    """

    groups: tuple[RecordGroup, ...]
    files: dict[str, Path] = field(default_factory=dict)
    problems: tuple[NotARecord, ...] = ()
    simulations: tuple[Simulation, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """All records that a table shows."""
        return tuple(record for group in self.groups for record in group.records)


def read(roots: Sequence[Path], simulated: Path | None = None) -> Source:
    """Read results; what could not be read stands under `problems`, so that the rest is still reported.

    Args:
        roots: Results directories, each with `records/`. Where two hold a record of one key, the newest counts.
        simulated: Directory below which files named `simulation.json` lie; None: there are none.
    """
    every: dict[Path, Record] = {}
    problems: list[NotARecord] = []
    for root in roots:
        store = RecordStore(root)
        records, bad = store.load_all()
        every |= {store.path(record): record for record in records}
        problems += bad
    paths = sorted(every, key=lambda path: (every[path].order, path))
    groups = tuple(chain(*sweeps(group_records(every[path] for path in paths))))
    simulations = []
    for path in sorted(simulated.rglob("simulation.json")) if simulated is not None else ():
        try:
            simulations.append(Simulation.model_validate(read_json(path)))
        except NotARecord as error:
            problems.append(error)
        except ValidationError as error:
            problems.append(NotARecord(path, f"is no simulation of this version: {str(error).splitlines()[0]}"))
    return Source(
        groups=groups,
        files={every[path].key: path for path in paths},
        problems=tuple(problems),
        simulations=tuple(simulations),
    )


def publish(source: Source, out: Path) -> list[Path]:
    """Write `tables/`, `figures/` and the page of a source that has a group; returns the files.

    Raises:
        StoreError: a file cannot be written; earlier files are still whole.
    """
    made = sheets(source.groups)
    files, pictures = [*write_sheets(made, out / "tables")], {}
    for name, figure in figures(source).items():
        content = io.BytesIO()
        with look(f"report {name}", svg_text=True):
            figure.savefig(content, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        files.append(out / "figures" / f"{name}.svg")
        write_atomically(files[-1], content.getvalue())
        pictures[name] = content.getvalue().decode()
    write_atomically(out / PAGE, page(source, made, pictures, out))
    return [*files, out / PAGE]


PAPER_COLUMNS: Final = (
    SYSTEM,
    *PAPER,
    Column(
        words="row is", name="row", text=True,
        definition="measured (by this suite, on the hardware named) or published (by others, on theirs); no "
        "number of one compares with the other unless hardware, batch and cache are the same.",
    ),
    Column(words="hardware", name="hardware", text=True),
    Column(words="batch", name="batch_size", show=count),
    Column(words="cache ratio or budget", name="size", text=True),
)  # fmt: skip


def sheets(groups: Sequence[RecordGroup]) -> tuple[Sheet, ...]:
    """The sheets of all groups: the comparison, and the paper's layout of it, with the published rows at the end.

    The paper has no rows on a drive, and neither has its layout.
    """
    shown = [group for group in groups if not on_drive(group)]
    tables = tuple(_paper_table(group, heading) for group, heading in zip(shown, headings(shown), strict=True))
    paper = Sheet(name="paper", title="Dataset by method, in the paper's layout (arXiv 2208.05321)", tables=tables)
    return (comparison(groups), paper) if tables else (comparison(groups),)


def _paper_table(group: RecordGroup, heading: str) -> ResultTable:
    rows, published = merged_rows(group), published_rows(group.cell.workload)
    notes = [*remarks(rows), *([NOTE] if published else ["The paper has no rows for this dataset."])]
    if published and group.cell.data == "synthetic":
        notes.append("Labels of synthetic data are not the dataset's: do not compare published AUROC and accuracy.")
    return ResultTable(
        heading=heading,
        caption=caption([group]),
        columns=PAPER_COLUMNS,
        lines=(*(_measured(group, row) for row in rows), *map(_published, published)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _measured(group: RecordGroup, row: Row) -> dict[str, Any]:
    ended = ("virtual device" if group.on_virtual_device else "measured") + (
        ", not verified" if row.verified == "no" else ""
    )
    return {
        **row.line(),
        "row": ended if row.status is Status.OK else row.status.value,
        "hardware": f"{group.key.device}, CPU only" if group.on_cpu else group.key.device,
        "size": cache_size(group.cell),
    }


def _published(row: PublishedRow) -> dict[str, Any]:
    """A published row: raw numbers in SI units, and its cells as the source prints them, every digit.

    Memory, printed in GB by a source that means GiB (see `suite.records.groups.NOTE`), is converted to bytes.
    """
    same = ("workload", "batch_size", "cache_ratio", "source", "system", "auroc", "accuracy", "steps_per_s", "epoch_s")
    memory = {
        "device_allocated_bytes": row.gpu_allocated_gb,
        "device_reserved_bytes": row.gpu_reserved_gb,
        "host_peak_rss_bytes": row.cpu_gb,
    }
    return {
        **{name: getattr(row, name) for name in same},
        **{name: round(size * 2**30) for name, size in memory.items()},
        **{"kind": "published", "data": "real", "device": row.gpu, "host": row.cpu, "status": "published"},
        **{"row": "published", "size": f"{100 * row.cache_ratio:g} %"},
        "hardware": f"{row.gpu}; {row.cpu}; {row.memory}",
        "printed": {
            **{name: f"{size:g}" for name, size in memory.items()},
            **{"auroc": str(row.auroc), "accuracy": str(row.accuracy), "steps_per_s": f"{row.steps_per_s:g}"},
            # the source gives whole seconds below an hour
            "epoch_s": duration(row.epoch_s) if row.epoch_s >= 60 else f"{row.epoch_s:g}s",
        },
    }


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


def report_command(
    *,
    out: Annotated[Path, typer.Option(help="Results directory that gets tables, figures and the page")] = Path(
        "results/published"
    ),
    records: Annotated[
        list[Path] | None,
        typer.Option(help="A results directory to read; again for each further run or machine; default: --out"),
    ] = None,
) -> None:
    """Turn records into what gets published: tables, figures, and one page that opens offline.

    Tables go to `tables/` as Markdown, CSV and LaTeX, figures to `figures/` as SVG, the page to `index.html`. The same
    records always give the same files. Records of another machine, device, data or setting stand in tables of their
    own; files that are no records are named and the rest is reported. Replays below `simulate/`, in the directory or
    beside it, give the figure of misses.

    Examples: `python -m suite report --out results`; `python -m suite report --records gpu --records cpu --out both`.

    The exit code is 2 for a wrong option or where there is nothing to report, 1 if a file cannot be written.
    """
    console = ShownConsole(soft_wrap=True, markup=False, highlight=False)
    with errors_told(left="files that were already written are whole") as errors:
        source = _read(out, records or [out])
        for problem in source.problems:
            errors.print(f"warning: left out {problem}")
        check_output(out)
        files = publish(source, out)
        tables, machines = len(source.groups), len({group.key.machine for group in source.groups})
        console.print(
            f"{len(source.records)} records of {machines} machine{'s' if machines > 1 else ''} in {tables} "
            f"comparison{'s' if tables > 1 else ''}: wrote {len(files)} files"
        )
        console.print(f"Open {out / PAGE}")


def _read(out: Path, roots: list[Path]) -> Source:
    """Read what the options name.

    Raises:
        BadOption: a directory is missing, there is no record that can be read, or some are of a virtual device.
    """
    for root in roots:
        if not (root / "records").is_dir():
            flag = "--out" if roots == [out] else "--records"
            raise BadOption(
                f"{flag}: {root} has no records/: run python run_bench.py --out {root} first, or name a results "
                "directory that has"
            )
    simulated = next((folder for folder in (out / "simulate", out.parent / "simulate") if folder.is_dir()), None)
    source = read(roots, simulated)
    named = ", ".join(map(str, roots))
    if not source.groups:
        skipped = "".join(f"\n  {problem}" for problem in source.problems)
        raise BadOption(f"no records to report in {named}: run python run_bench.py first{skipped}")
    if mixes_virtual(source.records):
        raise BadOption(
            f"--records: {named}: some records are of a virtual device and others were measured, so no report sets "
            "them side by side; give directories of one kind"
        )
    return source
