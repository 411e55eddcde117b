"""Throughput of rows on a drive by the host budget, below the line of all rows in RAM."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

from suite.records.groups import IN_RAM, REFERENCE, Group, base_name, is_baseline
from suite.records.status import Status
from suite.report.figures.panels import Panels, panel_title
from suite.report.figures.throughput import byte_ticks
from suite.report.figures.titles import Titles
from suite.report.figures.words import LABEL, SMALL, letters_in, wrapped
from suite.report.source import Source
from suite.tables.disk import OnDrive, Step, rows_on_drive
from suite.tables.figure_style import BLACK, COLOURS, DASHES, MARKERS
from suite.tables.quantities import binary_bytes
from suite.tables.sweeps import on_drive, sweeps

TITLE = f"Throughput of rows on a drive by host budget, and of {IN_RAM}, which keeps all rows in RAM"
NOTE = (
    f"Bars: 95 % interval of the ratio to {IN_RAM}, which took turns with each. Budget: all that a system may keep in "
    "memory for rows, the page cache of its files included; that of all rows in RAM lies outside it."
)
_PANEL_IN, _HEIGHT_IN = 3.9, 2.8
_LEGEND_LETTERS = 40


def draw(source: Source) -> Figure | None:
    """The figure, a line of panels per sweep of budgets; None where nobody on a drive was timed."""
    found = [(sweep[0], _timed(sweep)) for sweep in sweeps(filter(on_drive, source.groups))]
    shown = [(group, rows) for group, rows in found if any(not is_baseline(row.system) for row in rows)]
    if not shown:
        return None
    systems = sorted({row.system for _, rows in shown for row in rows if not is_baseline(row.system)})
    steps = [step for step in Step if any(row.step == step for _, rows in shown for row in rows)]
    titles = Titles.of([group for group, _ in shown])
    panels = Panels(
        TITLE,
        titles.shared,
        NOTE,
        heights_in=[_HEIGHT_IN] * len(shown),
        columns=len(steps),
        width_in=max(6.4, _PANEL_IN * len(steps)),
    )
    for (group, rows), own, line in zip(shown, titles.own, panels.axes, strict=True):
        for step, axes in zip(steps, line, strict=True):
            here = [row for row in rows if row.step == step]
            if here:
                _draw(axes, here, systems)
            panel_title(axes, group.title, (*own, step), letters=letters_in(_PANEL_IN - 0.7, LABEL))
            axes.set_xlabel("host budget, log scale", fontsize=SMALL)
        line[0].set_ylabel("samples/s, log scale", fontsize=LABEL)
    return panels.close(first=[IN_RAM, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _timed(sweep: Sequence[Group]) -> list[OnDrive]:
    """What ended ok, verified and exact, and was timed."""
    return [
        row
        for step in Step
        for row in rows_on_drive(sweep, step)
        if row.samples_per_s is not None
        and row.status == Status.OK
        and row.verified not in ("no", None)
        and row.exact
        and base_name(row.system) != REFERENCE
    ]


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
            axes.errorbar(
                [row.host_budget_bytes for row in own],
                [row.samples_per_s or 0.0 for row in own],
                yerr=[[bar[side] for bar in map(_bar, own)] for side in (0, 1)],
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
    axes.set_xlim(*ends)
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: binary_bytes(round(size))))
    speeds = [row.samples_per_s or 0.0 for row in rows]
    low, high = min(speeds) / 1.3, max(speeds) * 1.3
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(byte_ticks(low, high)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(labelsize=SMALL)


def _bar(row: OnDrive) -> tuple[float, float]:
    """How far the interval goes down and up, in samples/s; not a number where there is none, which draws nothing."""
    speed = row.speed
    if speed is None or speed.low is None or speed.high is None or row.samples_per_s is None:
        return math.nan, math.nan
    scale = row.samples_per_s / speed.value
    return scale * (speed.value - speed.low), scale * (speed.high - speed.value)
