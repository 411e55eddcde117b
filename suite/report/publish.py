"""Reads records, writes everything that a report publishes, and says whether what is published is up to date.

The same records give the same files, but for the last digits of what is drawn: processors of different makes round
logarithms differently, which moves a line by a millionth of a point. Such a figure is not out of date. Numbers in
tables, and in the words of a drawing, have no such freedom.
"""

import filecmp
import io
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from pydantic import ValidationError

from suite.records.groups import Group, group_records
from suite.records.record import Record
from suite.records.store import NotARecord, Problem, RecordStore, read_json, write_atomically
from suite.report.figures import figures
from suite.report.page import page
from suite.report.sheets import sheets
from suite.simulate.results import Simulation
from suite.tables.comparison import comparison
from suite.tables.formatting import look
from suite.tables.settings import sweeps
from suite.tables.sheet import write_sheets

PAGE = "index.html"
_DPI, _SHADES, _NEARLY_WHITE = 300, 128, 250
_POINTS = 0.01
"""Coordinates may differ by so much."""
_DRAWING = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_NAME = re.compile(r"\b[a-z]{1,3}[0-9a-f]{10}\b")
"""Matplotlib's name of a part of a drawing: a digest of its coordinates."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Everything that gets published, read once.

    Attributes:
        groups: Comparison groups, sizes of a sweep from the smallest.
        files: File of every record of the groups, by the record's key.
        problems: Files that were skipped, and why.
        simulations: Replays of every policy by cache size, with the optimum.
    """

    groups: tuple[Group, ...]
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
    files: dict[str, Path] = {}
    for path in sorted(every, key=lambda path: (every[path].order, path)):
        if (older := files.get(every[path].key)) is not None:
            problems.append(Problem(older, "repeats the key of a file that counts in its place"))
        files[every[path].key] = path
    groups = tuple(chain(*sweeps(group_records(every[path] for path in files.values()))))
    shown = {record.key for group in groups for record in group.records}
    simulations = tuple(_simulated(simulated, problems)) if simulated is not None else ()
    return Source(
        groups=groups,
        files={key: path for key, path in files.items() if key in shown},
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


def publish(
    source: Source, out: Path, *, links_from: Path | None = None, on_step: Callable[[str], None] = lambda what: None
) -> list[Path]:
    """Write `tables/`, `figures/` and the page of a source that has a group; returns the files.

    Links to records start from `links_from`, `out` by default. `on_step` is told what is made next.

    Raises:
        StoreError: a file cannot be written; earlier files are still whole.
    """
    on_step("tables")
    compared, made = comparison(source.groups), sheets(source.groups)
    files = [*write_sheets([compared], out / "tables", suffixes=("md", "csv")), *write_sheets(made, out / "tables")]
    on_step("figures")
    drawn = write_figures(source, out / "figures")
    on_step("page")
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in drawn if path.suffix == ".svg"}
    write_atomically(out / PAGE, page(source, (compared, *made), pictures, links_from or out))
    return [*files, *drawn, out / PAGE]


def write_figures(source: Source, folder: Path) -> list[Path]:
    """Write every figure as SVG, with its text as text, and as PNG of 300 dpi: the same bytes for the same source.

    Raises:
        StoreError: one cannot be written; the earlier file is still whole.
    """
    paths = []
    for name, figure in figures(source).items():
        with look(f"report {name}", svg_text=True):
            # once for both formats
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            for suffix, content in (("svg", _svg(figure)), ("png", _png(figure))):
                paths.append(folder / f"{name}.{suffix}")
                write_atomically(paths[-1], content)
    return paths


def _svg(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()


def _png(figure: Figure) -> bytes:
    """With a palette: figures have few colours, and a third of the bytes will do."""
    drawn, content = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    picture = Image.open(drawn).convert("RGB").quantize(_SHADES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # a shade of the palette is the mean of its pixels: paper has to stay white
    picture.putpalette([255 if shade > _NEARLY_WHITE else shade for shade in picture.getpalette() or ()])
    picture.save(content, format="png", dpi=(_DPI, _DPI), optimize=True)
    return content.getvalue()


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
    """Whether two files of one name say the same: words are equal, and what is drawn nearly so. A PNG is its SVG."""
    if filecmp.cmp(one, other, shallow=False):
        return True
    if one.suffix == ".png":  # drawn with the SVG of its name
        return alike(one.with_suffix(".svg"), other.with_suffix(".svg"))
    if one.suffix not in (".svg", ".html"):
        return False
    (words, places), (others, elsewhere) = (_apart(path.read_text(encoding="utf-8")) for path in (one, other))
    return words == others and np.allclose(places, elsewhere, rtol=0, atol=_POINTS)


def _apart(text: str) -> tuple[str, list[float]]:
    """A text without the coordinates of its drawings, which stand in tags, and those coordinates."""
    places: list[float] = []

    def taken(number: re.Match[str]) -> str:
        places.append(float(number[0]))
        return "#"

    def without(drawing: re.Match[str]) -> str:
        return _TAG.sub(lambda tag: _NUMBER.sub(taken, tag[0]), _named_in_order(drawing[0]))

    return _DRAWING.sub(without, text), places


def _named_in_order(drawing: str) -> str:
    """The drawing with its digests replaced by their order of appearance."""
    numbers = itertools.count()
    order: dict[str, int] = {}
    return _NAME.sub(lambda found: f"part {order.setdefault(found[0], next(numbers))}", drawing)
