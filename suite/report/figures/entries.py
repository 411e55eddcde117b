"""A figure with a panel per family and a line per system."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D

from suite.report.figures.families import Entry, Family, Titles, families, side_by_side
from suite.report.figures.panels import COLUMNS, Panels, panel_title
from suite.report.figures.words import LABEL, SMALL, letters_in, wrapped
from suite.report.source import Source
from suite.tables.figure_style import BLACK

_LINE_IN = 0.24
_PANEL_IN, _NAMES_IN = 2.9, 2.0

Fill = Callable[[Axes, Family, Sequence[float]], None]
"""Draws a family: its panel, itself, and the height of each entry's line."""


def entry_panels(
    source: Source,
    *,
    title: str,
    note: str,
    axis: str,
    shows: Callable[[Entry], bool],
    fill: Fill,
) -> Figure | None:
    """Draw the families in which some entry has something to show.

    Args:
        source: What is reported.
        title: Of the figure.
        note: What a reader has to know of it.
        axis: Label of the x axes, with its unit.
        shows: Whether an entry has data.
        fill: Draws a panel.

    Returns:
        The figure; None where no entry has data.
    """
    shown = [family for family in families(source.groups) if any(map(shows, family.entries))]
    if not shown:
        return None
    lines = list(side_by_side(shown, COLUMNS))
    columns = max(map(len, lines))
    titles = Titles.of([family.group for family in shown])
    own_of = dict(zip(map(id, shown), titles.own, strict=True))
    panels = Panels(
        title,
        titles.shared,
        note,
        heights_in=[lines_in(line[0]) for line in lines],
        columns=columns,
        width_in=_NAMES_IN + _PANEL_IN * columns,
    )
    for members, row in zip(lines, panels.axes, strict=True):
        for number, (family, axes) in enumerate(zip(members, row, strict=False)):
            places = list_entries(axes, family.entries, labelled=number == 0)
            fill(axes, family, places)
            own = own_of[id(family)]
            panel_title(axes, family.group.title, own, letters=letters_in(_PANEL_IN - 0.3, LABEL))
            axes.set_xlabel(axis, fontsize=LABEL)
    return panels.close()


def lines_in(family: Family) -> float:
    """Height of a family's lines, for the longest of its labels."""
    tallest = max(len(wrapped(entry.label).splitlines()) for entry in family.entries)
    return max(_LINE_IN, 0.11 * tallest + 0.08) * (len(family.entries) + 0.5)


def list_entries(axes: Axes, entries: Sequence[Entry], *, labelled: bool) -> list[float]:
    """Make a panel with a line per entry, from above; controls stand apart. Returns the lines' heights."""
    places, at = [], 0.0
    for before, entry in zip((None, *entries), entries, strict=False):
        if entry.is_control and before is not None and not before.is_control:
            axes.axhline(at - 0.3, color="#555555", linewidth=0.6)
            at += 0.4
        places.append(at)
        at += 1
    words = [wrapped(f"{entry.label} (control)" if entry.is_control else entry.label) for entry in entries]
    axes.set_yticks(places if labelled else [], words if labelled else [], fontsize=SMALL)
    axes.set_ylim(at - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    return places


def stack(
    axes: Axes,
    places: Sequence[float],
    starts: Sequence[float],
    widths: Sequence[float],
    *,
    height: float,
    label: str,
    fill: tuple[str, str],
) -> None:
    """Draw bars of one kind as one shape, which keeps an SVG with hundreds of bars small; none where a width is 0.

    Args:
        axes: Where.
        places: Middles of the bars.
        starts: Where they begin.
        widths: How long they are.
        height: Of all of them.
        label: In the legend.
        fill: Colour and hatch.
    """
    bars = [
        Path.unit_rectangle().transformed(Affine2D().scale(width, height).translate(start, place - height / 2))
        for place, start, width in zip(places, starts, widths, strict=True)
        if width
    ]
    if bars:
        colour, hatch = fill
        shape = Path.make_compound_path(*bars)
        axes.add_patch(PathPatch(shape, label=label, facecolor=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.3))
        axes.autoscale_view(scaley=False)


def beside(axes: Axes, place: float, words: str) -> None:
    """Write a value right of a panel, at the height of its entry."""
    axes.text(1.02, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL - 0.5)
