"""Command line: `python -m suite report`, which writes all that is published: the same records give the same files."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from suite.records.command_line import BadOption, ShownConsole, errors_told
from suite.records.groups import RecordGroup, group_records, mixes_virtual
from suite.records.record import Record
from suite.records.store import NotARecord, RecordStore, read_json, write_atomically
from suite.report.figures import figures
from suite.report.page import page
from suite.report.sheets import sheets
from suite.simulate.options import check_output
from suite.simulate.results import Simulation
from suite.tables.formatting import look
from suite.tables.settings import sweeps
from suite.tables.sheet import write_sheets

PAGE = "index.html"


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
        records, bad = RecordStore(root).load_files()
        every |= records
        problems += bad
    paths = sorted(every, key=lambda path: (every[path].order, path))
    groups = tuple(chain(*sweeps(group_records(every[path] for path in paths))))
    simulations = tuple(_simulated(simulated, problems)) if simulated is not None else ()
    return Source(
        groups=groups,
        files={every[path].key: path for path in paths},
        problems=tuple(problems),
        simulations=simulations,
    )


def _simulated(folder: Path, problems: list[NotARecord]) -> Iterator[Simulation]:
    for path in sorted(folder.rglob("simulation.json")):
        try:
            yield Simulation.model_validate(read_json(path))
        except NotARecord as error:
            problems.append(error)
        except ValidationError as error:
            problems.append(NotARecord(path, f"is no simulation of this version: {str(error).splitlines()[0]}"))


def publish(source: Source, out: Path) -> list[Path]:
    """Write `tables/`, `figures/` and the page of a source that has a group; returns the files.

    Raises:
        StoreError: a file cannot be written; earlier files are still whole.
    """
    made = sheets(source.groups)
    files = write_sheets(made, out / "tables")
    drawn = write_figures(source, out / "figures")
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in drawn}
    write_atomically(out / PAGE, page(source, made, pictures, out))
    return [*files, *drawn, out / PAGE]


def write_figures(source: Source, folder: Path) -> list[Path]:
    """Write every figure as SVG, with its text as text: the same bytes for the same source.

    Raises:
        StoreError: one cannot be written; the earlier file is still whole.
    """
    paths = []
    for name, figure in figures(source).items():
        content = io.BytesIO()
        with look(f"report {name}", svg_text=True):
            figure.savefig(content, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        paths.append(folder / f"{name}.svg")
        write_atomically(paths[-1], content.getvalue())
    return paths


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
