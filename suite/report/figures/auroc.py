"""AUROC of every system beside the reference's: systems that compute alike must learn alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report.figures.entries import beside, lines_in, list_entries
from suite.report.figures.families import Entry, Family, Titles, families, side_by_side
from suite.report.figures.panels import COLUMNS, Panels, panel_title
from suite.report.figures.words import LABEL, letters_in
from suite.report.source import Source
from suite.tables.figure_style import BLACK, COLOURS, GREY
from suite.tables.settings import best_auroc

TITLE = "AUROC on the test split after the same training steps"
NOTE = (
    "Median over rounds; in brackets the difference to the reference (= : none). The control trains the dense part "
    "alone: a system below it loses what embeddings bring."
)
BEST = "best possible: the model that planted the labels"


_PANEL_IN, _NAMES_IN = 2.9, 2.0


def draw(source: Source) -> Figure | None:
    """The figure; None where no AUROC was measured."""
    shown = [
        family for family in families(source.groups) if any(entry.row.auroc is not None for entry in family.entries)
    ]
    if not shown:
        return None
    lines = list(side_by_side(shown, COLUMNS))
    columns = max(map(len, lines))
    titles = Titles.of([family.group for family in shown])
    own_titles = iter(titles.own)
    panels = Panels(
        TITLE,
        titles.shared,
        NOTE,
        heights_in=[lines_in(line[0]) for line in lines],
        columns=columns,
        width_in=_NAMES_IN + _PANEL_IN * columns,
    )
    for members, row in zip(lines, panels.axes, strict=True):
        for number, (family, axes) in enumerate(zip(members, row, strict=False)):
            _panel(axes, family, list_entries(axes, family.entries, labelled=number == 0))
            panel_title(axes, family.group.title, next(own_titles), letters=letters_in(_PANEL_IN - 0.3, LABEL))
            axes.set_xlabel("AUROC", fontsize=LABEL)
    return panels.close()


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
    """AUROC of the model that planted the labels; None where labels are real."""
    if family.group.cell.data != "synthetic":
        return None
    best = best_auroc(run for entry in family.entries for run in entry.records)
    return best if best is not None and math.isfinite(best) else None
