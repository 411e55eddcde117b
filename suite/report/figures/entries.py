"""A panel with a line per system."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D

from suite.report.figures.families import Entry, Family
from suite.report.figures.words import SMALL, wrapped
from suite.tables.figure_style import BLACK

_LINE_IN = 0.24


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
