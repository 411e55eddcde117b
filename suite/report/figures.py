"""The four published figures: throughput by device bytes and by host budget, misses by cache size, quality by bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import ScaledTranslation

from suite.records.groups import BASELINE, IN_RAM, REFERENCE, base_name, is_baseline
from suite.report.panels import COLUMNS, LABEL, Panels, bytes_words, round_ticks, series, ticks_at, wrapped
from suite.simulate.results import Simulation
from suite.simulate.show import label, plot
from suite.tables.approximate import approximations
from suite.tables.disk import Step, is_sound, rows_on_drive
from suite.tables.formatting import BLACK, COLOURS, DASHES, GREY, MARKERS, binary_bytes, look
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import on_drive, sweeps
from suite.tables.sheet import Line
from suite.tables.statistics import Estimate
from systems.registry import CONTROLS

if TYPE_CHECKING:
    from suite.report.publish import Source

_LEGEND_LETTERS = 40
_APART_POINTS, _FAR_POINTS = 2.5, 5.0
"""Between systems of the same bytes, which would hide each other, and from the true place at most."""


def throughput_by_bytes(source: Source) -> Figure | None:
    """Throughput relative to the all-on-device baseline by device bytes, with the noise that its repeat shows.

    None where nobody beside the baseline has bytes on the device and a ratio. Rows on a drive have another figure.
    """
    shown = []
    for sweep in sweeps(group for group in source.groups if not on_drive(group)):
        rows = [row for group in sweep for row in merged_rows(group) if _has_a_point(row, on_cpu=group.on_cpu)]
        if any(not is_baseline(row.system) for row in rows):
            shown.append((sweep[0], rows))
    if not shown:
        return None
    systems = sorted({row.system for _, rows in shown for row in rows if not is_baseline(row.system)})
    note = (
        "Bars: 95 % interval. Grey band: noise, from the baseline's repeat; a point in the band, or whose bar reaches "
        "1, is no difference. Bytes: rows, optimizer state, index and staging on the device, by the system's account."
    )
    if any(group.on_cpu for group, _ in shown):
        note += (
            " On a CPU, RAM plays the device as well: this is what the cache's work costs, and no offload throughput; "
            "systems that keep nothing on the device are left out."
        )
    panels = Panels(
        f"Throughput by device bytes, relative to {BASELINE}, which has all rows on the device",
        note,
        [group for group, _ in shown],
        columns=min(COLUMNS, len(shown)),
        panel_in=(3.3, 2.4),
    )
    for number, ((_, rows), axes) in enumerate(zip(shown, panels.flat, strict=False)):
        noise = max((row.noise for row in rows if row.noise is not None), default=None)
        _draw_by_bytes(axes, rows, systems, noise)
        panels.name(axes, number, *(() if noise is None else (f"noise ±{100 * noise:.2g} %",)))
    panels.label("device bytes, log scale", f"samples/s relative to {BASELINE}")
    return panels.close(first=[BASELINE, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _has_a_point(row: Row, *, on_cpu: bool) -> bool:
    yardstick = base_name(row.system) in (*CONTROLS, REFERENCE)
    return row.ratio is not None and row.sound and not yardstick and (bool(row.device_bytes) or not on_cpu)


def _draw_by_bytes(axes: Axes, rows: Sequence[Row], systems: Sequence[str], noise: float | None) -> None:
    sizes = [row.device_bytes for row in rows if row.device_bytes]
    low_end, high_end = min(sizes, default=1) / 1.5, max(sizes, default=1) * 1.5
    nothing = low_end / 2  # where systems stand that have no bytes on the device
    somebody_has_none = len(sizes) < len(rows)
    if noise is not None:
        axes.axhspan(1 - noise, 1 + noise, color=GREY, alpha=0.3, linewidth=0, label="noise")
    axes.axhline(1, color=GREY, linewidth=0.8, zorder=1.5)
    baseline = next((row for row in rows if is_baseline(row.system)), None)
    if baseline is not None:
        axes.plot([baseline.device_bytes or nothing], [1], "D", color=BLACK, markersize=5, label=BASELINE, zorder=3)
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
    found = row.ratio or Estimate(value=0.0, low=None, high=None)
    low, high = (math.nan if bound is None else bound for bound in (found.low, found.high))
    return found.value, low, high


def throughput_by_budget(source: Source) -> Figure | None:
    """Throughput of rows on a drive by host budget, a line of panels per sweep; None where nobody there was timed."""
    found = [
        (sweep[0], [one for step in Step for one in rows_on_drive(sweep, step) if is_sound(one)])
        for sweep in sweeps(filter(on_drive, source.groups))
    ]
    shown = [(group, rows) for group, rows in found if any(not is_baseline(one["system"]) for one in rows)]
    if not shown:
        return None
    every = [one for _, rows in shown for one in rows]
    systems = sorted({one["system"] for one in every if not is_baseline(one["system"])})
    steps = [step for step in Step if any(one["step"] == step for one in every)]
    panels = Panels(
        f"Throughput of rows on a drive by host budget, and of {IN_RAM}, which keeps all rows in RAM",
        f"Bars: 95 % interval of the ratio to {IN_RAM}, which took turns with each. Budget: all that a system may keep "
        "in memory for rows, the page cache of its files included; that of all rows in RAM lies outside it.",
        [group for group, _ in shown],
        columns=len(steps),
        lines=len(shown),
        panel_in=(3.9, 2.8),
    )
    for number, ((_, rows), line) in enumerate(zip(shown, panels.axes, strict=True)):
        for step, axes in zip(steps, line, strict=True):
            if here := [one for one in rows if one["step"] == step]:
                _draw_by_budget(axes, here, systems)
            panels.name(axes, number, step)
    panels.label("host budget, log scale", "samples/s, log scale")
    return panels.close(first=[IN_RAM, *(wrapped(system, _LEGEND_LETTERS) for system in systems)])


def _draw_by_budget(axes: Axes, rows: Sequence[Line], systems: Sequence[str]) -> None:
    budgets = sorted({one["budget"] for one in rows})
    ends = budgets[0] / 1.3, budgets[-1] * 1.3
    ram = {one["budget"]: one["samples_per_s"] for one in rows if is_baseline(one["system"])}
    if ram:
        # measured anew beside every budget: as level as the machine was steady
        at = sorted(ram)
        heights = [ram[budget] for budget in (at[0], *at, at[-1])]
        axes.plot([ends[0], *at, ends[1]], heights, color=BLACK, linewidth=0.9, label=IN_RAM)
    for number, system in enumerate(systems):
        if own := sorted((one for one in rows if one["system"] == system), key=lambda one: one["budget"]):
            points = [(one["budget"], one["samples_per_s"], *_bar(one)) for one in own]
            series(axes, number, wrapped(system, _LEGEND_LETTERS), points)
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    ticks_at(axes.xaxis, budgets, lambda size, _: binary_bytes(round(size)))
    speeds = [one["samples_per_s"] for one in rows]
    low, high = min(speeds) / 1.3, max(speeds) * 1.3
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks_at(axes.yaxis, round_ticks(low, high), EngFormatter(sep=""))


def _bar(one: Line) -> tuple[float, float]:
    """Lengths of the interval below and above, in samples/s; not a number where there is none, which draws nothing."""
    speed, per_s = one["ratio"], one["samples_per_s"]
    if speed is None or speed.low is None or speed.high is None:
        return math.nan, math.nan
    return per_s * (1 - speed.low / speed.value), per_s * (speed.high / speed.value - 1)


CHOICE: Final = (
    "freq_cache[policy=static]",
    "freq_cache[policy=static,look_ahead=64]",
    "freq_cache[policy=lfu]",
    "freq_cache[policy=lfu,look_ahead=64]",
    "freq_cache[policy=lru]",
    "freq_cache[policy=lru,look_ahead=64]",
    "fbgemm_uvm_caching[policy=lru]",
    "fbgemm_uvm_caching[policy=lfu]",
    "colossalai[policy=dataset]",
    "cdlrm",
    "lru",
    "belady",
)
"""Policies that are drawn first; others where there is room."""
_LOOK_AHEAD = re.compile(r",look_ahead=\d+")


def miss_ratio(source: Source) -> Figure | None:
    """Miss-ratio curves of the simulated policies, with the optimum; None where no simulation replayed any."""
    shown = [(one, policies) for one in source.simulations if (policies := _policies(one))]
    if not shown:
        return None
    order = sorted({policy for _, policies in shown for policy in policies}, key=_place)
    panels = Panels(
        "Misses by cache size: simulated, no system ran",
        "Replayed without weights. A miss is a distinct row of a batch that was not cached when the batch arrived; "
        "Belady's rule, which knows the future, is the least possible for a cache that holds all rows of a batch; one "
        "that reads rows past itself can miss slightly fewer.",
        columns=min(2, len(shown)),
        lines=math.ceil(len(shown) / 2),
        panel_in=(4.4, 3.0),
    )
    for (simulation, policies), axes in zip(shown, panels.flat, strict=False):
        plot(axes, simulation, {policy: _style(policy, order) for policy in policies})
        ratios = [100 * ratio for ratio in simulation.configuration.cache_ratios]
        axes.set_xlim(min(ratios) / 1.15, max(ratios) * 1.15)
        stream, counted = simulation.stream, simulation.configuration.counted_batches
        facts = f"scale {stream.scale}, batch {stream.batch_size:,}, seed {stream.seed}, {counted:,} batches counted"
        name = stream.name if simulation.complete else f"{stream.name}, interrupted: not all sizes"
        panels.name(axes, None, name, facts)
        axes.set_xlabel(f"cached rows, % of {stream.rows:,} (log scale)", fontsize=LABEL)
    panels.label(y="misses, % of distinct rows")
    return panels.close(first=[label(policy) for policy in order])


def _policies(simulation: Simulation) -> list[str]:
    """The choice first, then others, as many as stay readable."""
    replayed = {row.policy for row in simulation.rows if row.traffic is not None}
    return sorted((name for name in simulation.configuration.policies if name in replayed), key=_place)[: len(CHOICE)]


def _place(policy: str) -> tuple[int, str]:
    return (CHOICE.index(policy) if policy in CHOICE else len(CHOICE)), policy


def _style(policy: str, order: Sequence[str]) -> dict[str, Any]:
    """With and without look-ahead share a colour and a mark, which is hollow and dashed with it."""
    bases = list(dict.fromkeys(_LOOK_AHEAD.sub("", name) for name in order))
    plain = _LOOK_AHEAD.sub("", policy)
    ahead, number = plain != policy, bases.index(plain)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.0,
        "markerfacecolor": "white" if ahead else None,
        "linestyle": "--" if ahead else DASHES[2 * (number // 3) % 4],
    }


def quality_by_bytes(source: Source) -> Figure | None:
    """AUROC of approximate systems by the bytes of their tables, under the exact baseline's; None without any."""
    listed = ((group, approximations(group)) for group in source.groups)
    measured = [
        (group, [one for one in found if one["auroc"] is not None and one["table_bytes"]]) for group, found in listed
    ]
    shown = [(group, found) for group, found in measured if len(found) > 1]
    if not shown:
        return None
    kinds = sorted({base_name(one["system"]) for _, found in shown for one in found if not one["exact"]})
    panels = Panels(
        "Quality of approximate tables by their bytes",
        "AUROC on the test split at equal samples trained, mean over rounds, which differ in seed. Line: the exact "
        "baseline. Bars: 95 % interval of the difference to it, seed by seed. Bytes: rows and state of whole tables.",
        [group for group, _ in shown],
        columns=min(COLUMNS, len(shown)),
        panel_in=(3.6, 2.8),
    )
    for number, ((_, found), axes) in enumerate(zip(shown, panels.flat, strict=False)):
        for one in (one for one in found if one["exact"]):
            size, auroc, *_ = _point(one)
            axes.axhline(auroc, color=BLACK, linewidth=0.9, label="exact")
            axes.plot([size], [auroc], "D", color=BLACK, markersize=5, zorder=3)
        for place, kind in enumerate(kinds):
            if own := [_point(one) for one in found if not one["exact"] and base_name(one["system"]) == kind]:
                series(axes, place, kind, sorted(own))
        sizes = [one["table_bytes"] for one in found]
        ends = min(sizes) / 1.5, max(sizes) * 1.5
        axes.set_xscale("log")
        axes.set_xlim(*ends)
        ticks_at(axes.xaxis, round_ticks(*ends), bytes_words)
        panels.name(axes, number)
    panels.label("bytes of tables, log scale", "AUROC")
    return panels.close(first=["exact", *kinds])


def _point(one: Line) -> tuple[float, float, float, float]:
    """Its size in bytes, its AUROC, and how far the interval goes down and up."""
    below, down, up = one["below"], 0.0, 0.0
    if below is not None and below.low is not None and below.high is not None:
        down, up = below.high - below.value, below.value - below.low
    return one["table_bytes"], one["auroc"].value, down, up


DRAWN: tuple[Callable[[Source], Figure | None], ...] = (
    throughput_by_bytes, throughput_by_budget, miss_ratio, quality_by_bytes,
)  # fmt: skip
"""In the order of the page, each under its function's name."""


def figures(source: Source) -> dict[str, Figure]:
    """The figures by name; one without data is left out."""
    drawn = {}
    for draw in DRAWN:
        with look(f"report {draw.__name__}"):
            figure = draw(source)
        if figure is not None:
            drawn[draw.__name__] = figure
    return drawn
