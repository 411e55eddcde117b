"""Throughput relative to the all-on-device baseline by device bytes, and the noise that its second copy shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from suite.records.groups import BASELINE, REFERENCE, Group, base_name, is_baseline
from suite.records.status import Status
from suite.report.figures.panels import (
    COLUMNS,
    LABEL,
    SMALL,
    Panels,
    bytes_words,
    round_ticks,
    series,
    ticks_at,
    wrapped,
)
from suite.report.source import Source
from suite.tables.figure_style import BLACK, GREY
from suite.tables.rows import Row, merged_rows, noise_floor
from suite.tables.settings import on_drive, sweeps
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
_APART_POINTS, _FAR_POINTS = 2.5, 5.0
"""Between systems of the same bytes, which would hide each other, and from the true place at most."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A system at one size, 0: none of its bytes are on the device; an interval that it has not is not a number."""

    system: str
    size: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A sweep's points, and the noise of its contests: the largest, as a share; None where no baseline ran twice."""

    group: Group
    points: tuple[Point, ...]
    noise: float | None


def panels_of(source: Source) -> tuple[Panel, ...]:
    """A panel per sweep of cache sizes in which somebody beside the baseline has bytes on the device and a ratio.

    Rows on a drive have a figure of their own.
    """
    found = []
    for sweep in (one for one in sweeps(source.groups) if not on_drive(one[0])):
        rows = [merged_rows(group) for group in sweep]
        points = tuple(_points(itertools.chain(*rows), on_cpu=sweep[0].on_cpu))
        if any(not is_baseline(point.system) for point in points):
            noises = [noise for of_group in rows if (noise := noise_floor(of_group)) is not None]
            found.append(Panel(group=sweep[0], points=points, noise=max(noises, default=None)))
    return tuple(found)


def draw(source: Source) -> Figure | None:
    """The figure; None where there is nothing to compare."""
    shown = panels_of(source)
    if not shown:
        return None
    columns = min(COLUMNS, len(shown))
    systems = sorted({point.system for panel in shown for point in panel.points if not is_baseline(point.system)})
    panels = Panels(
        TITLE,
        NOTE + (NOTE_CPU if any(panel.group.on_cpu for panel in shown) else ""),
        [panel.group for panel in shown],
        heights_in=[_HEIGHT_IN] * math.ceil(len(shown) / columns),
        columns=columns,
        panel_in=_PANEL_IN,
    )
    for number, (panel, axes) in enumerate(zip(shown, itertools.chain(*panels.axes), strict=False)):
        _draw(axes, panel, systems)
        panels.name(axes, number, *(() if panel.noise is None else (f"noise ±{100 * panel.noise:.2g} %",)))
        axes.set_xlabel("device bytes, log scale", fontsize=SMALL)
    for line in panels.axes:
        line[0].set_ylabel(f"samples/s relative to {BASELINE}", fontsize=LABEL)
    return panels.close(first=[BASELINE, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _points(rows: Iterable[Row], *, on_cpu: bool) -> Iterable[Point]:
    for row in rows:
        size = row.device_bytes or 0
        yardstick = base_name(row.system) in (*CONTROLS, REFERENCE) or row.again
        sound = row.exact and row.status is Status.OK and row.verified not in ("no", None)
        if row.ratio is not None and sound and not yardstick and (size or not on_cpu):
            low, high = (math.nan if bound is None else bound for bound in (row.ratio_low, row.ratio_high))
            yield Point(system=row.system, size=size, ratio=row.ratio, low=low, high=high)


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
        series(
            axes,
            number,
            wrapped(system, _LEGEND_LETTERS),
            [(one.size or nothing, one.ratio, one.ratio - one.low, one.high - one.ratio) for one in points],
            transform=axes.transData + ScaledTranslation(beside / 72, 0, axes.figure.dpi_scale_trans),
        )
    axes.set_xscale("log")
    axes.set_xlim(nothing / 1.5 if somebody_has_none else low_end, high_end)
    ticks = round_ticks(low_end, high_end)
    ticks_at(
        axes.xaxis,
        [nothing, *ticks] if somebody_has_none else ticks,
        lambda x, _: "none" if x == nothing else bytes_words(x),
    )
    # set by hand: matplotlib takes moved points for data elsewhere
    reached = [1.0, *(y for point in panel.points for y in (point.ratio, point.low, point.high) if math.isfinite(y))]
    reached += [1 - panel.noise, 1 + panel.noise] if panel.noise is not None else []
    margin = 0.08 * (max(reached) - min(reached)) or 0.05
    axes.set_ylim(min(reached) - margin, max(reached) + margin)
    axes.tick_params(labelsize=SMALL)
