"""Reads records, writes everything that a report publishes, and says whether what is published is up to date.

The same records give the same files, but for the last digits of what is drawn: processors of different makes round
logarithms differently, which moves a line by a millionth of a point. Such a figure is not out of date. Numbers in
tables, and in the words of a drawing, have no such freedom.
"""

import filecmp
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
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
_POINTS = 0.01
"""Coordinates may differ by so much."""
_IN_TAG = re.compile(r"""-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=[^<>]*>)""")
"""A number inside a tag."""
_NAME = re.compile(r"\b[a-z]{1,3}[0-9a-f]{10}\b")
"""Matplotlib's name of a part of a drawing: a digest of its coordinates."""


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


def publish(source: Source, out: Path, *, links_from: Path | None = None) -> list[Path]:
    """Write `tables/`, `figures/` and the page of a source that has a group; returns the files.

    Links to records start from `links_from`, `out` by default.

    Raises:
        StoreError: a file cannot be written; earlier files are still whole.
    """
    made = sheets(source.groups)
    files = write_sheets(made, out / "tables")
    drawn = write_figures(source, out / "figures")
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in drawn}
    write_atomically(out / PAGE, page(source, made, pictures, links_from or out))
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


def differences(source: Source, out: Path) -> list[str]:
    """List what `publish` would change in a directory, a sentence per file; nothing is written there.

    Figures may differ as `alike` allows, everything else not at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        made = {path.relative_to(fresh) for path in publish(source, fresh, links_from=out)}
        found = []
        for name in sorted(made):
            if not (out / name).is_file():
                found.append(f"{name} is missing")
            elif not alike(out / name, fresh / name):
                found.append(f"{name} differs")
    here = {path.relative_to(out) for part in ("tables", "figures") for path in (out / part).glob("*")}
    return found + [f"{name} is of no record any more: delete it" for name in sorted(here - made)]


def alike(one: Path, other: Path) -> bool:
    """Whether two files of one name say the same: words are equal, and numbers in the tags of drawings nearly so."""
    if filecmp.cmp(one, other, shallow=False):
        return True
    if one.suffix not in (".svg", ".html"):
        return False
    (words, places), (others, elsewhere) = (_apart(path.read_text(encoding="utf-8")) for path in (one, other))
    return words == others and np.allclose(places, elsewhere, rtol=0, atol=_POINTS)


def _apart(text: str) -> tuple[str, list[float]]:
    """A text without the numbers in tags of drawings, whose parts have one name, and those numbers."""
    places: list[float] = []

    def without(drawing: re.Match[str]) -> str:
        text = _NAME.sub("part", drawing[0])
        places.extend(map(float, _IN_TAG.findall(text)))
        return _IN_TAG.sub("#", text)

    return re.sub(r"<svg\b.*?</svg>", without, text, flags=re.DOTALL), places
