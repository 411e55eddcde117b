"""AUROC of every system beside the reference's: systems that compute alike must learn alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report.figures.entries import beside, entry_panels
from suite.report.figures.families import Entry, Family
from suite.report.source import Source
from suite.tables.figure_style import BLACK, COLOURS, GREY

TITLE = "AUROC on the test split after the same training steps"
NOTE = (
    "Median over rounds; in brackets the difference to the reference (= : none). The control trains the dense part "
    "alone: a system below it loses what embeddings bring."
)
BEST = "best possible: the model that planted the labels"


def draw(source: Source) -> Figure | None:
    """The figure; None where no AUROC was measured."""
    return entry_panels(
        source,
        title=TITLE,
        note=NOTE,
        axis="AUROC",
        shows=lambda entry: entry.row.auroc is not None,
        fill=_panel,
    )


def _panel(axes: Axes, family: Family, places: Sequence[float]) -> None:
    reference = next((one.row.auroc for one in family.entries if one.is_reference and one.row.auroc is not None), None)
    for entry, place in zip(family.entries, places, strict=True):
        beside(axes, place, _words(entry, reference))
    for label, control, marker, colour in (
        ("system", False, "o", COLOURS[0]),
        ("control without embeddings", True, "D", COLOURS[1]),
    ):
        points = [
            (entry.row.auroc, place)
            for entry, place in zip(family.entries, places, strict=True)
            if entry.is_control is control and entry.row.auroc is not None
        ]
        if points:
            face = "white" if control else colour
            axes.plot(
                *zip(*points, strict=True),
                label=label, linestyle="", marker=marker, markersize=5, color=colour, markerfacecolor=face,
            )  # fmt: skip
    if reference is not None:
        axes.axvline(reference, color=GREY, linewidth=1.1, linestyle="--", zorder=1.5, label="the reference")
    best = _best(family)
    if best is not None:
        axes.axvline(best, color=BLACK, linewidth=1.1, linestyle=":", zorder=1.5, label=BEST)
    axes.margins(x=0.12)
    axes.ticklabel_format(axis="x", useOffset=False)


def _words(entry: Entry, reference: float | None) -> str:
    found = entry.row.auroc
    if found is None:
        return f"n/a: {entry.row.status.value}"
    if reference is None or entry.is_reference:
        return f"{found:.5f}"
    difference = found - reference
    return f"{found:.5f} (=)" if difference == 0 else f"{found:.5f} ({difference:+.2g})"


def _best(family: Family) -> float | None:
    """Only where labels are planted."""
    if family.group.cell.data != "synthetic":
        return None
    found = [
        run.measurement.quality.best_auroc
        for entry in family.entries
        for run in entry.records
        if run.measurement is not None and run.measurement.quality.best_auroc is not None
    ]
    best = statistics.median(found) if found else math.nan
    return best if math.isfinite(best) else None
