"""AUROC of approximate systems by the bytes of their tables, under the line of the exact baseline."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.records.groups import base_name
from suite.report.figures.panels import COLUMNS, Panels, bytes_words, round_ticks, series, ticks_at
from suite.report.source import Source
from suite.tables.approximate import Approximation, approximations
from suite.tables.figure_style import BLACK

TITLE = "Quality of approximate tables by their bytes"
NOTE = (
    "AUROC on the test split at equal samples trained, mean over rounds, which differ in seed. Line: the exact "
    "baseline. Bars: 95 % interval of the difference to it, seed by seed. Bytes: rows and state of whole tables."
)


def draw(source: Source) -> Figure | None:
    """The figure; None without approximate systems."""
    listed = ((group, approximations(group)) for group in source.groups)
    measured = [(group, [one for one in found if one.auroc is not None and one.table_bytes]) for group, found in listed]
    shown = [(group, found) for group, found in measured if len(found) > 1]
    if not shown:
        return None
    kinds = sorted({base_name(one.row.system) for _, found in shown for one in found if not one.row.exact})
    panels = Panels(TITLE, NOTE, [group for group, _ in shown], columns=min(COLUMNS, len(shown)), panel_in=(3.6, 2.8))
    for number, ((_, found), axes) in enumerate(zip(shown, panels.flat, strict=False)):
        _draw(axes, found, kinds)
        panels.name(axes, number)
    panels.label("bytes of tables, log scale", "AUROC")
    return panels.close(first=["exact", *kinds])


def _draw(axes: Axes, found: Sequence[Approximation], kinds: Sequence[str]) -> None:
    for one in found:
        if one.row.exact:
            size, auroc, *_ = _point(one)
            axes.axhline(auroc, color=BLACK, linewidth=0.9, label="exact")
            axes.plot([size], [auroc], "D", color=BLACK, markersize=5, zorder=3)
    for number, kind in enumerate(kinds):
        own = [_point(one) for one in found if not one.row.exact and base_name(one.row.system) == kind]
        if own:
            series(axes, number, kind, sorted(own))
    sizes = [one.table_bytes or 1 for one in found]
    ends = min(sizes) / 1.5, max(sizes) * 1.5
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    ticks_at(axes.xaxis, round_ticks(*ends), bytes_words)


def _point(one: Approximation) -> tuple[float, float, float, float]:
    """Its size in bytes, its AUROC, and how far the interval goes down and up."""
    below, down, up = one.below, 0.0, 0.0
    if below is not None and below.low is not None and below.high is not None:
        down, up = below.high - below.value, below.value - below.low
    return one.table_bytes or 0, one.auroc.value if one.auroc is not None else 0.0, down, up
