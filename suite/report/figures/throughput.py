"""Throughput relative to the all-on-device baseline by device bytes, and the noise that its second copy shows."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from suite.records.groups import BASELINE, REFERENCE, Group, base_name, is_baseline
from suite.report.figures.panels import COLUMNS, Panels, bytes_words, round_ticks, series, ticks_at, wrapped
from suite.report.source import Source
from suite.tables.figure_style import BLACK, GREY
from suite.tables.rows import Row, merged_rows
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
_LEGEND_LETTERS = 40
_APART_POINTS, _FAR_POINTS = 2.5, 5.0
"""Between systems of the same bytes, which would hide each other, and from the true place at most."""


def drawn(source: Source) -> list[tuple[Group, list[Row]]]:
    """The rows of every sweep of cache sizes in which somebody beside the baseline has bytes on the device and a ratio.

    Rows on a drive have a figure of their own.
    """
    found = []
    for sweep in sweeps(group for group in source.groups if not on_drive(group)):
        rows = [row for group in sweep for row in merged_rows(group) if _has_a_point(row, on_cpu=group.on_cpu)]
        if any(not is_baseline(row.system) for row in rows):
            found.append((sweep[0], rows))
    return found


def draw(source: Source) -> Figure | None:
    """The figure; None where there is nothing to compare."""
    shown = drawn(source)
    if not shown:
        return None
    systems = sorted({row.system for _, rows in shown for row in rows if not is_baseline(row.system)})
    panels = Panels(
        TITLE,
        NOTE + (NOTE_CPU if any(group.on_cpu for group, _ in shown) else ""),
        [group for group, _ in shown],
        columns=min(COLUMNS, len(shown)),
        panel_in=(3.3, 2.4),
    )
    for number, ((_, rows), axes) in enumerate(zip(shown, panels.flat, strict=False)):
        noise = max((row.noise for row in rows if row.noise is not None), default=None)
        _draw(axes, rows, systems, noise)
        panels.name(axes, number, *(() if noise is None else (f"noise ±{100 * noise:.2g} %",)))
    panels.label("device bytes, log scale", f"samples/s relative to {BASELINE}")
    return panels.close(first=[BASELINE, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _has_a_point(row: Row, *, on_cpu: bool) -> bool:
    yardstick = base_name(row.system) in (*CONTROLS, REFERENCE) or row.again
    return row.ratio is not None and row.sound and not yardstick and (bool(row.device_bytes) or not on_cpu)


def _draw(axes: Axes, rows: Sequence[Row], systems: Sequence[str], noise: float | None) -> None:
    sizes = [row.device_bytes for row in rows if row.device_bytes]
    low_end, high_end = min(sizes, default=1) / 1.5, max(sizes, default=1) * 1.5
    nothing = low_end / 2  # where systems stand that have no bytes on the device
    somebody_has_none = len(sizes) < len(rows)
    if noise is not None:
        axes.axhspan(1 - noise, 1 + noise, color=GREY, alpha=0.3, linewidth=0, label="noise")
    axes.axhline(1, color=GREY, linewidth=0.8, zorder=1.5)
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    if baseline is not None:
        at = baseline.device_bytes or nothing
        axes.plot([at], [1], "D", color=BLACK, markersize=5, label=BASELINE, zorder=3)
    here = [system for system in systems if any(row.system == system for row in rows)]
    apart = min(_APART_POINTS, 2 * _FAR_POINTS / max(1, len(here) - 1))
    reached = [1.0] if noise is None else [1.0, 1 - noise, 1 + noise]
    for place, system in enumerate(here):
        points = sorted((row.device_bytes or nothing, *_interval(row)) for row in rows if row.system == system)
        reached += [bound for _, *bounds in points for bound in bounds if math.isfinite(bound)]
        series(
            axes,
            systems.index(system),
            wrapped(system, _LEGEND_LETTERS),
            [(size, ratio, ratio - low, high - ratio) for size, ratio, low, high in points],
            transform=axes.transData
            + ScaledTranslation(apart * (place - (len(here) - 1) / 2) / 72, 0, axes.figure.dpi_scale_trans),
        )
    axes.set_xscale("log")
    axes.set_xlim(nothing / 1.5 if somebody_has_none else low_end, high_end)
    ticks = [*([nothing] if somebody_has_none else []), *round_ticks(low_end, high_end)]
    ticks_at(axes.xaxis, ticks, lambda x, _: "none" if x == nothing else bytes_words(x))
    # set by hand: matplotlib takes moved points for data elsewhere
    margin = 0.08 * (max(reached) - min(reached)) or 0.05
    axes.set_ylim(min(reached) - margin, max(reached) + margin)


def _interval(row: Row) -> tuple[float, float, float]:
    """Its ratio and the ends of the interval; not a number where there is none, which draws nothing."""
    low, high = (math.nan if bound is None else bound for bound in (row.ratio_low, row.ratio_high))
    return row.ratio or 0.0, low, high
