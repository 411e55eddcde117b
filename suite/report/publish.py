"""Everything that a report writes, from records alone: the same records give the same files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from suite.records.store import write_atomically
from suite.report.alike import alike
from suite.report.figures.write import write_figures
from suite.report.page.page import page
from suite.report.sheets import sheets
from suite.report.source import Source
from suite.tables.comparison import write_tables
from suite.tables.sheet import write_sheets

PAGE = "index.html"


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
