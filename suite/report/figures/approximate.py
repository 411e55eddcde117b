"""AUROC of approximate systems by the bytes of their tables, under the line of the exact baseline."""

from __future__ import annotations

import itertools
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from suite.records.groups import base_name
from suite.report.figures.panels import COLUMNS, Panels, panel_title
from suite.report.figures.throughput import byte_ticks
from suite.report.figures.titles import Titles
from suite.report.figures.words import LABEL, SMALL, bytes_words, letters_in
from suite.report.source import Source
from suite.tables.approximate import Approximation, approximations
from suite.tables.figure_style import BLACK, COLOURS, MARKERS

TITLE = "Quality of approximate tables by their bytes"
NOTE = (
    "AUROC on the test split at equal samples trained, mean over rounds, which differ in seed. Line: the exact "
    "baseline. Bars: 95 % interval of the difference to it, seed by seed. Bytes: rows and state of whole tables."
)
_PANEL_IN, _HEIGHT_IN = 3.6, 2.8


def draw(source: Source) -> Figure | None:
    """The figure; None without approximate systems."""
    shown = [(group, found) for group in source.groups if len(found := _measured(approximations(group))) > 1]
    if not shown:
        return None
    kinds = sorted({base_name(one.system) for _, found in shown for one in found if not one.exact})
    columns = min(COLUMNS, len(shown))
    titles = Titles.of([group for group, _ in shown])
    panels = Panels(
        TITLE,
        titles.shared,
        NOTE,
        heights_in=[_HEIGHT_IN] * math.ceil(len(shown) / columns),
        columns=columns,
        width_in=max(6.4, _PANEL_IN * columns),
    )
    for (group, found), own, axes in zip(shown, titles.own, itertools.chain(*panels.axes), strict=False):
        _draw(axes, found, kinds)
        panel_title(axes, group.title, own, letters=letters_in(_PANEL_IN - 0.7, LABEL))
        axes.set_xlabel("bytes of tables, log scale", fontsize=SMALL)
    for line in panels.axes:
        line[0].set_ylabel("AUROC", fontsize=LABEL)
    return panels.close(first=["exact", *kinds])


def _measured(found: tuple[Approximation, ...]) -> list[Approximation]:
    return [one for one in found if one.auroc is not None and one.table_bytes]


def _draw(axes: Axes, found: list[Approximation], kinds: list[str]) -> None:
    points = [_Point(one) for one in found]
    for point in points:
        if point.one.exact:
            axes.axhline(point.auroc, color=BLACK, linewidth=0.9, label="exact")
            axes.plot([point.size], [point.auroc], "D", color=BLACK, markersize=5, zorder=3)
    for number, kind in enumerate(kinds):
        own = sorted(
            (point for point in points if not point.one.exact and base_name(point.one.system) == kind),
            key=lambda point: point.size,
        )
        if own:
            axes.errorbar(
                [point.size for point in own],
                [point.auroc for point in own],
                yerr=([point.down for point in own], [point.up for point in own]),
                label=kind,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4.5,
                linewidth=1.1,
                elinewidth=0.9,
                capsize=2,
                zorder=3,
            )
    low_end, high_end = min(point.size for point in points) / 1.5, max(point.size for point in points) * 1.5
    axes.set_xscale("log")
    axes.set_xlim(low_end, high_end)
    axes.xaxis.set_major_locator(FixedLocator(byte_ticks(low_end, high_end)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(bytes_words))
    axes.tick_params(labelsize=SMALL)


class _Point:
    """An approximation in the figure: its size in bytes, its AUROC, and how far the interval goes down and up."""

    def __init__(self, one: Approximation) -> None:
        assert one.auroc is not None and one.table_bytes is not None
        self.one, self.size, self.auroc = one, one.table_bytes, one.auroc
        self.down = self.up = 0.0
        if one.below is not None and one.below_low is not None and one.below_high is not None:
            self.down, self.up = one.below_high - one.below, one.below - one.below_low
