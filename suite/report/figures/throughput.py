"""Throughput relative to the all-on-device baseline by device bytes, and the noise that its second copy shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from suite.records.groups import BASELINE, REFERENCE, base_name, is_baseline
from suite.records.status import Status
from suite.report.families import Family, device_bytes, families
from suite.report.figures.panels import COLUMNS, Panels, panel_title
from suite.report.figures.titles import Titles
from suite.report.figures.words import LABEL, SMALL, bytes_words, letters_in, wrapped
from suite.report.source import Source
from suite.tables.figure_style import BLACK, COLOURS, DASHES, GREY, MARKERS
from suite.tables.rows import Row, merged_rows, noise_floor
from systems.registry import CONTROLS

TITLE = f"Throughput by device bytes, relative to {BASELINE}, which has all rows on the device"
NOTE = (
    "Bars: 95 % interval. Grey band: noise, from the baseline's own second copy; a point in the band, or whose bar "
    "reaches 1, is no difference. Bytes: rows, optimizer state, index and staging on the device, by the system's own "
    "account."
)
NOTE_CPU = (
    " On a CPU, RAM plays the device as well: this is what the cache's work costs, and no offload throughput; systems "
    "that keep nothing on the device are left out."
)
_PANEL_IN, _HEIGHT_IN = 3.3, 2.4
_LEGEND_LETTERS = 40
_MOST_TICKS = 4
_APART_POINTS, _FAR_POINTS = 2.5, 5.0
"""Between systems of the same bytes, which would hide each other, and from the true place at most."""
_STEPS = (
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    (1.0, 2.0, 3.0, 5.0, 7.0),
    (1.0, 2.0, 5.0),
    (1.0, 3.0),
    (1.0,),
)
"""Of a decade, finest first."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A system at one size.

    Attributes:
        size: Device bytes; 0: none are on the device.
        low, high: Of the ratio's interval; not a number where it has none, which draws nothing.
    """

    system: str
    size: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A family's points, and the noise of its contests: the largest, as a share; None where no baseline ran twice."""

    family: Family
    points: tuple[Point, ...]
    noise: float | None


def panels_of(source: Source) -> tuple[Panel, ...]:
    """A panel per family in which somebody beside the baseline has bytes on the device and a ratio.

    Rows on a drive have a figure of their own.
    """
    found = []
    for family in (one for one in families(source.groups) if not one.on_drive):
        rows = [merged_rows(group) for group in family.groups]
        points = tuple(_points(itertools.chain(*rows), on_cpu=family.group.on_cpu))
        if any(not is_baseline(point.system) for point in points):
            noises = [noise for of_group in rows if (noise := noise_floor(of_group)) is not None]
            found.append(Panel(family=family, points=points, noise=max(noises, default=None)))
    return tuple(found)


def draw(source: Source) -> Figure | None:
    """The figure; None where there is nothing to compare."""
    shown = panels_of(source)
    if not shown:
        return None
    columns = min(COLUMNS, len(shown))
    systems = sorted({point.system for panel in shown for point in panel.points if not is_baseline(point.system)})
    titles = Titles.of([panel.family.group for panel in shown])
    panels = Panels(
        TITLE,
        titles.shared,
        NOTE + (NOTE_CPU if any(panel.family.group.on_cpu for panel in shown) else ""),
        heights_in=[_HEIGHT_IN] * math.ceil(len(shown) / columns),
        columns=columns,
        width_in=max(6.4, _PANEL_IN * columns),
    )
    letters = letters_in(_PANEL_IN - 0.7, LABEL)
    for panel, own, axes in zip(shown, titles.own, itertools.chain(*panels.axes), strict=False):
        _draw(axes, panel, systems)
        noise = () if panel.noise is None else (f"noise ±{100 * panel.noise:.2g} %",)
        panel_title(axes, panel.family.group.title, (*own, *noise), letters=letters)
        axes.set_xlabel("device bytes, log scale", fontsize=SMALL)
    for line in panels.axes:
        line[0].set_ylabel(f"samples/s relative to {BASELINE}", fontsize=LABEL)
    return panels.close(first=[BASELINE, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def byte_ticks(low: float, high: float) -> list[float]:
    """Round sizes between two: as many as have room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [
        [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]
        for steps in _STEPS
    ]
    fitting = [ticks for ticks in choices if len(ticks) <= _MOST_TICKS]
    return max(fitting, key=len) if fitting else choices[-1][:: math.ceil(len(choices[-1]) / _MOST_TICKS)]


def _points(rows: Iterable[Row], *, on_cpu: bool) -> Iterable[Point]:
    for row in rows:
        size = device_bytes(row) or 0
        yardstick = base_name(row.system) in (*CONTROLS, REFERENCE) or row.again
        if (
            row.ratio is None
            or yardstick
            or not row.exact
            or row.status is not Status.OK
            or row.verified in ("no", None)
        ):
            continue
        if size or not on_cpu:
            low, high = row.ratio_low, row.ratio_high
            yield Point(
                system=row.system,
                size=size,
                ratio=row.ratio,
                low=math.nan if low is None else low,
                high=math.nan if high is None else high,
            )


def _draw(axes: Axes, panel: Panel, systems: Sequence[str]) -> None:
    sizes = [point.size for point in panel.points if point.size]
    low_end, high_end = min(sizes, default=1) / 1.5, max(sizes, default=1) * 1.5
    nothing = low_end / 2
    somebody_has_none = any(not point.size for point in panel.points)
    if panel.noise is not None:
        axes.axhspan(1 - panel.noise, 1 + panel.noise, color=GREY, alpha=0.3, linewidth=0, label="noise")
    axes.axhline(1, color=GREY, linewidth=0.8, zorder=1.5)
    baselines = [point for point in panel.points if is_baseline(point.system)]
    if baselines:
        axes.plot([baselines[0].size or nothing], [1], "D", color=BLACK, markersize=5, label=BASELINE, zorder=3)
    here = [system for system in systems if any(point.system == system for point in panel.points)]
    apart = min(_APART_POINTS, 2 * _FAR_POINTS / max(1, len(here) - 1))
    for system in here:
        points = sorted((point for point in panel.points if point.system == system), key=lambda point: point.size)
        number, beside = systems.index(system), apart * (here.index(system) - (len(here) - 1) / 2)
        axes.errorbar(
            [point.size or nothing for point in points],
            [point.ratio for point in points],
            yerr=([point.ratio - point.low for point in points], [point.high - point.ratio for point in points]),
            transform=axes.transData + ScaledTranslation(beside / 72, 0, axes.figure.dpi_scale_trans),
            label=wrapped(system, _LEGEND_LETTERS),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            markersize=4.5,
            linewidth=1.1,
            elinewidth=0.9,
            capsize=2,
            zorder=3,
        )
    axes.set_xscale("log")
    axes.set_xlim(nothing / 1.5 if somebody_has_none else low_end, high_end)
    ticks = byte_ticks(low_end, high_end)
    axes.xaxis.set_major_locator(FixedLocator([nothing, *ticks] if somebody_has_none else ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "none" if x == nothing else bytes_words(x)))
    # set by hand: matplotlib takes moved points for data elsewhere
    reached = [1.0, *(y for point in panel.points for y in (point.ratio, point.low, point.high) if math.isfinite(y))]
    reached += [1 - panel.noise, 1 + panel.noise] if panel.noise is not None else []
    margin = 0.08 * (max(reached) - min(reached)) or 0.05
    axes.set_ylim(min(reached) - margin, max(reached) + margin)
    axes.tick_params(labelsize=SMALL)
