"""A panel with a line per system."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from suite.report.families import Entry
from suite.report.figures.words import SMALL, wrapped

_LINE_IN = 0.24


def lines_in(entries: Sequence[Entry]) -> float:
    """Height of the entries' lines, for the longest of their labels."""
    tallest = max(len(wrapped(entry.label).splitlines()) for entry in entries)
    return max(_LINE_IN, 0.11 * tallest + 0.08) * (len(entries) + 0.5)


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


def beside(axes: Axes, place: float, words: str) -> None:
    """Write a value right of a panel, at the height of its entry."""
    axes.text(1.02, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL - 0.5)
