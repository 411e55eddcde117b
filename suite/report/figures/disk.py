"""Throughput of rows on a drive by the host budget, below the line of all rows in RAM."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from suite.records.groups import IN_RAM, is_baseline
from suite.report.figures.panels import (
    LABEL,
    SMALL,
    Panels,
    round_ticks,
    series,
    ticks_at,
    wrapped,
)
from suite.report.source import Source
from suite.tables.disk import OnDrive, Step, rows_on_drive
from suite.tables.figure_style import BLACK
from suite.tables.quantities import binary_bytes
from suite.tables.settings import on_drive, sweeps

TITLE = f"Throughput of rows on a drive by host budget, and of {IN_RAM}, which keeps all rows in RAM"
NOTE = (
    f"Bars: 95 % interval of the ratio to {IN_RAM}, which took turns with each. Budget: all that a system may keep in "
    "memory for rows, the page cache of its files included; that of all rows in RAM lies outside it."
)
_PANEL_IN, _HEIGHT_IN = 3.9, 2.8
_LEGEND_LETTERS = 40


def draw(source: Source) -> Figure | None:
    """The figure, a line of panels per sweep of budgets; None where nobody on a drive was timed."""
    found = [
        (sweep[0], [row for step in Step for row in rows_on_drive(sweep, step) if row.sound])
        for sweep in sweeps(filter(on_drive, source.groups))
    ]
    shown = [(group, rows) for group, rows in found if any(not is_baseline(row.system) for row in rows)]
    if not shown:
        return None
    systems = sorted({row.system for _, rows in shown for row in rows if not is_baseline(row.system)})
    steps = [step for step in Step if any(row.step == step for _, rows in shown for row in rows)]
    panels = Panels(
        TITLE,
        NOTE,
        [group for group, _ in shown],
        heights_in=[_HEIGHT_IN] * len(shown),
        columns=len(steps),
        panel_in=_PANEL_IN,
    )
    for number, ((_, rows), line) in enumerate(zip(shown, panels.axes, strict=True)):
        for step, axes in zip(steps, line, strict=True):
            here = [row for row in rows if row.step == step]
            if here:
                _draw(axes, here, systems)
            panels.name(axes, number, step)
            axes.set_xlabel("host budget, log scale", fontsize=SMALL)
        line[0].set_ylabel("samples/s, log scale", fontsize=LABEL)
    return panels.close(first=[IN_RAM, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _draw(axes: Axes, rows: Sequence[OnDrive], systems: Sequence[str]) -> None:
    budgets = sorted({row.host_budget_bytes for row in rows})
    ends = budgets[0] / 1.3, budgets[-1] * 1.3
    ram = {row.host_budget_bytes: row.samples_per_s or 0.0 for row in rows if is_baseline(row.system)}
    if ram:
        # measured anew beside every budget: as level as the machine was steady
        at = sorted(ram)
        heights = [ram[budget] for budget in (at[0], *at, at[-1])]
        axes.plot([ends[0], *at, ends[1]], heights, color=BLACK, linewidth=0.9, label=IN_RAM)
    for number, system in enumerate(systems):
        own = sorted((row for row in rows if row.system == system), key=lambda row: row.host_budget_bytes)
        if own:
            points = [(row.host_budget_bytes, row.samples_per_s or 0.0, *_bar(row)) for row in own]
            series(axes, number, wrapped(system, _LEGEND_LETTERS), points)
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    ticks_at(axes.xaxis, budgets, lambda size, _: binary_bytes(round(size)))
    speeds = [row.samples_per_s or 0.0 for row in rows]
    low, high = min(speeds) / 1.3, max(speeds) * 1.3
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks_at(axes.yaxis, round_ticks(low, high), EngFormatter(sep=""))
    axes.tick_params(labelsize=SMALL)


def _bar(row: OnDrive) -> tuple[float, float]:
    """How far the interval goes down and up, in samples/s; not a number where there is none, which draws nothing."""
    speed = row.speed
    if speed is None or speed.low is None or speed.high is None or row.samples_per_s is None:
        return math.nan, math.nan
    scale = row.samples_per_s / speed.value
    return scale * (speed.value - speed.low), scale * (speed.high - speed.value)
