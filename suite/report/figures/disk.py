"""Throughput of rows on a drive by the host budget, below the line of all rows in RAM."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from suite.records.groups import IN_RAM, is_baseline
from suite.report.figures.panels import Panels, round_ticks, series, ticks_at, wrapped
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
_LEGEND_LETTERS = 40


def draw(source: Source) -> Figure | None:
    """The figure, a line of panels per sweep of budgets; None where nobody on a drive was timed."""
    found = [
        (sweep[0], [one for step in Step for one in rows_on_drive(sweep, step) if one.sound])
        for sweep in sweeps(filter(on_drive, source.groups))
    ]
    shown = [(group, rows) for group, rows in found if any(not is_baseline(one.row.system) for one in rows)]
    if not shown:
        return None
    every = [one for _, rows in shown for one in rows]
    systems = sorted({one.row.system for one in every if not is_baseline(one.row.system)})
    steps = [step for step in Step if any(one.step is step for one in every)]
    panels = Panels(
        TITLE, NOTE, [group for group, _ in shown], columns=len(steps), lines=len(shown), panel_in=(3.9, 2.8)
    )
    for number, ((_, rows), line) in enumerate(zip(shown, panels.axes, strict=True)):
        for step, axes in zip(steps, line, strict=True):
            here = [one for one in rows if one.step is step]
            if here:
                _draw(axes, here, systems)
            panels.name(axes, number, step)
    panels.label("host budget, log scale", "samples/s, log scale")
    return panels.close(first=[IN_RAM, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _draw(axes: Axes, rows: Sequence[OnDrive], systems: Sequence[str]) -> None:
    budgets = sorted({one.budget for one in rows})
    ends = budgets[0] / 1.3, budgets[-1] * 1.3
    ram = {one.budget: one.row.samples_per_s or 0.0 for one in rows if is_baseline(one.row.system)}
    if ram:
        # measured anew beside every budget: as level as the machine was steady
        at = sorted(ram)
        heights = [ram[budget] for budget in (at[0], *at, at[-1])]
        axes.plot([ends[0], *at, ends[1]], heights, color=BLACK, linewidth=0.9, label=IN_RAM)
    for number, system in enumerate(systems):
        own = sorted((one for one in rows if one.row.system == system), key=lambda one: one.budget)
        if own:
            points = [(one.budget, one.row.samples_per_s or 0.0, *_bar(one)) for one in own]
            series(axes, number, wrapped(system, _LEGEND_LETTERS), points)
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    ticks_at(axes.xaxis, budgets, lambda size, _: binary_bytes(round(size)))
    speeds = [one.row.samples_per_s or 0.0 for one in rows]
    low, high = min(speeds) / 1.3, max(speeds) * 1.3
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks_at(axes.yaxis, round_ticks(low, high), EngFormatter(sep=""))


def _bar(one: OnDrive) -> tuple[float, float]:
    """How far the interval goes down and up, in samples/s; not a number where there is none, which draws nothing."""
    speed, per_s = one.speed, one.row.samples_per_s
    if speed is None or speed.low is None or speed.high is None or per_s is None:
        return math.nan, math.nan
    return per_s * (1 - speed.low / speed.value), per_s * (speed.high / speed.value - 1)
