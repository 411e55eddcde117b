"""Everything that a report writes, from records alone, and whether it is up to date.

The same records give the same files, but for the last digits of what is drawn: processors of different makes round
logarithms differently, which moves a line by a millionth of a point. Such a figure is not out of date. Numbers in
tables have no such freedom.
"""

import filecmp
import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import image

from suite.records.store import write_atomically
from suite.report.figures.write import write_figures
from suite.report.page.page import page
from suite.report.sheets import sheets
from suite.report.source import Source
from suite.tables.comparison import write_tables
from suite.tables.sheet import write_sheets

PAGE = "index.html"
_POINTS = 0.01
"""Coordinates may differ by so much."""
_SHADE = 0.002
"""Pixels may differ by so much on average, of 1 from black to white."""
_DRAWING = re.compile(r"(<svg\b.*?</svg>)", re.DOTALL)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_NAME = re.compile(r"\b[a-z]{1,3}[0-9a-f]{10}\b")
"""What matplotlib calls a part of a drawing: a digest of its coordinates."""


def publish(
    source: Source, out: Path, *, links_from: Path | None = None, on_step: Callable[[str], None] = lambda what: None
) -> list[Path]:
    """Write `tables/`, `figures/` and the page of a source that has a group; returns the files.

    Links to records start from `links_from`, `out` by default. `on_step` is told what is made next.

    Raises:
        StoreError: a file cannot be written; earlier files are still whole.
    """
    on_step("tables")
    made = sheets(source.groups)
    files = [*write_tables(source.groups, out / "tables"), *write_sheets(made, out / "tables")]
    on_step("figures")
    drawn = write_figures(source, out / "figures")
    on_step("page")
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in drawn if path.suffix == ".svg"}
    write_atomically(out / PAGE, page(source, made, pictures, links_from or out))
    return [*files, *drawn, out / PAGE]


def differences(source: Source, out: Path) -> list[str]:
    """What `publish` would change in a directory, a sentence per file; nothing is written there.

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
    return found + [f"{name} is of no record any more" for name in sorted(here - made)]


def alike(one: Path, other: Path) -> bool:
    """Whether two files of one name say the same."""
    if filecmp.cmp(one, other, shallow=False):
        return True
    match one.suffix:
        case ".png":
            return _pictures_alike(one, other)
        case ".svg" | ".html":
            texts = [path.read_text(encoding="utf-8") for path in (one, other)]
            return _texts_alike(*(_DRAWING.split(text) for text in texts))
        case _:
            return False


def _texts_alike(some: list[str], others: list[str]) -> bool:
    """Drawings, which stand at odd places, nearly equal; what is between them equal."""
    return len(some) == len(others) and all(
        _drawings_alike(a, b) if place % 2 else a == b for place, (a, b) in enumerate(zip(some, others, strict=True))
    )


def _drawings_alike(one: str, other: str) -> bool:
    parts = [_NUMBER.split(_named_in_order(drawing)) for drawing in (one, other)]
    if len(parts[0]) != len(parts[1]):
        return False
    return all(
        abs(float(a) - float(b)) <= _POINTS if place % 2 else a == b
        for place, (a, b) in enumerate(zip(*parts, strict=True))
    )


def _named_in_order(drawing: str) -> str:
    """The drawing with its digests replaced by their order of appearance."""
    numbers = itertools.count()
    order: dict[str, int] = {}
    return _NAME.sub(lambda found: f"part {order.setdefault(found[0], next(numbers))}", drawing)


def _pictures_alike(one: Path, other: Path) -> bool:
    pictures = [image.imread(path)[..., :3] for path in (one, other)]
    if pictures[0].shape != pictures[1].shape:
        return False
    return float(np.abs(pictures[0].astype(np.float64) - pictures[1]).mean()) <= _SHADE
