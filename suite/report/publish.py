"""Reads records, and writes everything that a report publishes: the same records give the same files."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from suite.records.groups import RecordGroup, group_records
from suite.records.record import Record
from suite.records.store import NotARecord, Problem, RecordStore, read_json, write_atomically
from suite.report.figures import figures
from suite.report.page import page
from suite.report.sheets import sheets
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
    problems: tuple[Problem, ...] = ()
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
    problems: list[Problem] = []
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


def _simulated(folder: Path, problems: list[Problem]) -> Iterator[Simulation]:
    for path in sorted(folder.rglob("simulation.json")):
        try:
            yield Simulation.model_validate(read_json(path))
        except NotARecord as error:
            problems.append(Problem(path, str(error)))
        except ValidationError as error:
            problems.append(Problem(path, f"is no simulation of this version: {str(error).splitlines()[0]}"))


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
