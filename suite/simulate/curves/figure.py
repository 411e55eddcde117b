"""Curves as figures: one of all tables together, and small ones side by side of each table."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from suite.simulate.curves.curves import Curve, Curves
from suite.simulate.curves.slots_by_table import Split
from suite.simulate.curves.tables import curve_sizes
from suite.tables.figure_style import look

POOLED_FILE, TABLES_FILE = "curves.svg", "tables.svg"
MOST_TABLES = 60
"""Tables that are drawn: those with most distinct rows counted."""
_COLUMNS = 6
# Okabe and Ito's colours, which stay apart for the colour-blind; dashes keep them apart without colour.
_UNIQUE, _LOOKUPS, _SPLIT, _OVERFLOW = "#0072B2", "#D55E00", "#009E73", "#BBBBBB"


def draw(curves: Curves, split: Split | None, folder: Path) -> list[Path]:
    """Write the figures, the same bytes for the same curves, with the slots of a split marked. Returns the files."""
    with look("curves"):
        figures = {POOLED_FILE: _pooled(curves, split)}
        if curves.tables:
            figures[TABLES_FILE] = _tables(curves, split)
        for name, figure in figures.items():
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
    return [folder / name for name in figures]


def _pooled(curves: Curves, split: Split | None) -> Figure:
    curve = curves.pooled
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    sizes = curve_sizes(curve)
    rates = np.array([100 * curve.miss_rate(slots) for slots in sizes])
    axes.plot(sizes, rates, color=_UNIQUE, label="of distinct rows")
    if curves.sample is not None:
        errors = np.array([200 * curve.error(slots) / max(1, curve.unique_ids) for slots in sizes])
        low, high = np.maximum(0, rates - errors), np.minimum(100, rates + errors)
        axes.fill_between(sizes, low, high, color=_UNIQUE, alpha=0.2, linewidth=0, label="± 2 standard errors")
    lookups = [100 * curve.lookup_miss_rate(slots) for slots in sizes]
    axes.plot(sizes, lookups, color=_LOOKUPS, linestyle="--", label="of lookups")
    _frame(axes, curve)
    if split is not None:
        own = 100 * split.greedy.total_misses / max(1, curve.unique_ids)
        axes.plot(split.slots, own, "D", color=_SPLIT, label="tables apart, of distinct rows")
    axes.set(xlabel="slots of one LRU cache for all tables", ylabel="misses, %")
    axes.set_title(f"{curves.trace}: misses by cache size, {curves.batches:,} batches")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _tables(curves: Curves, split: Split | None) -> Figure:
    most = sorted(curves.tables, key=lambda curve: -curve.unique_ids)[:MOST_TABLES]
    shown = [curve for curve in curves.tables if curve in most]
    lines = math.ceil(len(shown) / _COLUMNS)
    figure = Figure(figsize=(10.5, 1.0 + 1.6 * lines), layout="constrained")
    grid = figure.subplots(lines, _COLUMNS, squeeze=False, sharey=True).reshape(-1)
    slots_of = {} if split is None else split.cache_rows()
    for axes, curve in zip(grid, shown, strict=False):
        sizes = curve_sizes(curve)
        axes.plot(sizes, [100 * curve.miss_rate(slots) for slots in sizes], color=_UNIQUE, linewidth=1.1)
        _frame(axes, curve)
        if curve.name in slots_of:
            slots = slots_of[curve.name]
            axes.plot(slots, 100 * curve.miss_rate(slots), "D", color=_SPLIT, markersize=4, clip_on=False)
        axes.set_title(f"{curve.name}: {curve.rows:,} rows", fontsize=7.5)
        axes.tick_params(labelsize=6.5)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    some = f", the {len(shown)} with most distinct rows of {len(curves.tables)}"
    of = "" if len(shown) == len(curves.tables) else some
    mark = "" if split is None else f"; diamonds: {split.slots:,} slots divided"
    figure.suptitle(f"{curves.trace}: each table with an LRU cache of its own{of}{mark}", fontsize=9.5)
    figure.supxlabel("slots", fontsize=9)
    figure.supylabel("misses, % of distinct rows", fontsize=9)
    return figure


def _frame(axes: Axes, curve: Curve) -> None:
    """Axes of slots and per cent; grey: the sizes into which the largest batch does not fit."""
    axes.set_xscale("log")
    axes.set_xlim(1, max(2, curve.rows))
    axes.set_ylim(0, 102)
    if curve.largest_batch > 1:
        label = "largest batch does not fit"
        axes.axvspan(1, curve.largest_batch, color=_OVERFLOW, alpha=0.35, linewidth=0, label=label)
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
