"""The four published figures: throughput by device bytes and by host budget, misses by cache size, quality by bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import ScaledTranslation

from suite.records.groups import BASELINE, IN_RAM, REFERENCE, RecordGroup, base_name, is_baseline
from suite.report.panels import COLUMNS, LABEL, Panels, bar, round_ticks, series, ticks_at
from suite.simulate.results import Simulation
from suite.tables.comparison import approximations
from suite.tables.disk import Step, is_sound, rows_on_drive
from suite.tables.formatting import BLACK, COLOURS, DASHES, GREY, MARKERS, binary_bytes, look
from suite.tables.rows import Row, merged_rows
from suite.tables.settings import headings, on_drive, sweeps
from suite.tables.sheet import Line
from suite.tables.statistics import Estimate
from systems.registry import CONTROLS

if TYPE_CHECKING:
    from suite.report.publish import Source

_APART_POINTS, _FAR_POINTS = 2.5, 5.0
"""Between systems of the same bytes, which would hide each other, and from the true place at most."""


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """A panel: values by size, beside a baseline's.

    Attributes:
        group: Its heading is the title.
        fact: A line below that.
        points: Label of the series, size in bytes (0: none), and value.
        level: The baseline's value; None: it was not measured.
        size: The baseline's size in bytes, where it has one.
        noise: Distance from the baseline that what equals it may show.
        ticks: Sizes to name; empty: round ones.
    """

    group: RecordGroup
    fact: str = ""
    points: Sequence[tuple[str, float, Estimate]]
    level: float | None = 1.0
    size: float | None = None
    noise: float | None = None
    ticks: Sequence[int] = ()


def throughput_by_bytes(source: Source) -> Figure | None:
    """Throughput relative to the all-on-device baseline by device bytes, with the noise that its repeat shows.

    None where nobody beside the baseline has bytes on the device and a ratio. Rows on a drive have another figure.
    """
    panels = []
    for sweep in sweeps(group for group in source.groups if not on_drive(group)):
        rows = [row for group in sweep for row in merged_rows(group) if _has_a_point(row, on_cpu=group.on_cpu)]
        noise = max((row.noise for row in rows if row.noise is not None), default=None)
        points = [(row.system, row.device_bytes or 0, row.ratio) for row in rows if row.ratio is not None]
        panels.append(
            _Panel(
                group=sweep[0],
                fact="" if noise is None else f"noise ±{100 * noise:.2g} %",
                points=[point for point in points if not is_baseline(point[0])],
                size=next((row.device_bytes for row in rows if is_baseline(row.system)), None),
                noise=noise,
            )
        )
    note = (
        "Bars: 95 % interval. Grey band: noise, from the baseline's repeat; a point in the band, or whose bar reaches "
        "1, is no difference. Bytes: rows, optimizer state, index and staging on the device, by the system's account."
    )
    if any(panel.group.on_cpu for panel in panels if panel.points):
        note += (
            " On a CPU, RAM plays the device as well: this is what the cache's work costs, and no offload throughput; "
            "systems that keep nothing on the device are left out."
        )
    title = f"Throughput by device bytes, relative to {BASELINE}, which has all rows on the device"
    return _by_size(title, note, panels, baseline=BASELINE, x="device bytes", y=f"samples/s relative to {BASELINE}")


def _has_a_point(row: Row, *, on_cpu: bool) -> bool:
    yardstick = base_name(row.system) in (*CONTROLS, REFERENCE)
    return row.ratio is not None and row.sound and not yardstick and (bool(row.device_bytes) or not on_cpu)


def throughput_by_budget(source: Source) -> Figure | None:
    """Throughput of rows on a drive by host budget, relative to all rows in RAM; None where nobody there was timed."""
    panels = []
    for sweep, step in product(sweeps(filter(on_drive, source.groups)), Step):
        lines = [one for one in rows_on_drive(sweep, step) if is_sound(one) and not is_baseline(one["system"])]
        points = [(one["system"], one["budget"], one["ratio"]) for one in lines if one["ratio"] is not None]
        noise = max((one["noise"] for one in lines if one["noise"] is not None), default=None)
        budgets = sorted({budget for _, budget, _ in points})
        panels.append(_Panel(group=sweep[0], fact=step, points=points, noise=noise, ticks=budgets))
    note = (
        f"Bars: 95 % interval of the ratio to {IN_RAM}, which took turns with each. Grey band, where it was repeated: "
        "noise. Budget: all that a system may keep in memory for rows, the page cache of its files included; that of "
        "all rows in RAM lies outside it."
    )
    title = f"Throughput of rows on a drive by host budget, relative to {IN_RAM}, which keeps all rows in RAM"
    return _by_size(title, note, panels, baseline=IN_RAM, x="host budget", y=f"samples/s relative to {IN_RAM}")


def quality_by_bytes(source: Source) -> Figure | None:
    """AUROC of approximate systems by the bytes of their tables, under the exact baseline's; None without any."""
    panels = []
    for group in source.groups:
        found = [one for one in approximations(group) if one["auroc"] is not None and one["table_bytes"]]
        exact = next((one for one in found if one["exact"]), None)
        panels.append(
            _Panel(
                group=group,
                points=[
                    (base_name(one["system"]), one["table_bytes"], _quality(one)) for one in found if not one["exact"]
                ],
                level=None if exact is None else exact["auroc"].value,
                size=None if exact is None else exact["table_bytes"],
            )
        )
    note = (
        "AUROC on the test split at equal samples trained, mean over rounds, which differ in seed. Line: the exact "
        "baseline. Bars: 95 % interval of the difference to it, seed by seed. Bytes: rows and state of whole tables."
    )
    title = "Quality of approximate tables by their bytes"
    return _by_size(title, note, panels, baseline="exact", x="bytes of tables", y="AUROC")


def _quality(one: Line) -> Estimate:
    """Its AUROC, with the interval of its distance to the exact one's."""
    up, down = bar(one["below"])
    auroc = one["auroc"].value
    return Estimate(value=auroc, low=auroc - down, high=auroc + up)


def _by_size(title: str, note: str, panels: Sequence[_Panel], *, baseline: str, x: str, y: str) -> Figure | None:
    """Panels of values by size, a series per label with a colour of its own; None where none has a point."""
    shown = [panel for panel in panels if panel.points]
    if not shown:
        return None
    groups = {panel.group.key: panel.group for panel in shown}
    names = dict(zip(groups, headings(list(groups.values()), sized=False), strict=True))
    labels = sorted({label for panel in shown for label, *_ in panel.points})
    figure = Panels(title, note, len(shown), columns=min(COLUMNS, len(shown)), panel_in=(3.4, 3.3))
    for panel, axes in zip(shown, figure.flat, strict=False):
        _draw(axes, panel, labels, baseline)
        figure.name(axes, *filter(None, (names[panel.group.key], panel.fact)))
    figure.label(f"{x}, log scale", y)
    return figure.close()


def _draw(axes: Axes, panel: _Panel, labels: Sequence[str], baseline: str) -> None:
    sizes = [size for size in (panel.size, *(size for _, size, _ in panel.points)) if size]
    low_end, high_end = min(sizes, default=1) / 1.5, max(sizes, default=1) * 1.5
    nothing = low_end / 2  # where systems stand that have no bytes on the device
    somebody_has_none = any(not size for _, size, _ in panel.points)
    reached: list[float] = []
    if panel.level is not None:
        reached += [panel.level - (panel.noise or 0), panel.level + (panel.noise or 0)]
        if panel.noise is not None:
            axes.axhspan(*reached, color=GREY, alpha=0.3, linewidth=0, label="noise")
        axes.axhline(panel.level, color=BLACK, linewidth=0.9, label=baseline, zorder=1.5)
        if panel.size:
            axes.plot([panel.size], [panel.level], "D", color=BLACK, markersize=5, zorder=3)
    here = [label for label in labels if any(label == one for one, *_ in panel.points)]
    apart = min(_APART_POINTS, 2 * _FAR_POINTS / max(1, len(here) - 1))
    for place, label in enumerate(here):
        own = sorted((size or nothing, found.value, *bar(found)) for one, size, found in panel.points if one == label)
        ends = (end for _, value, down, up in own for end in (value - down, value, value + up))
        reached += filter(math.isfinite, ends)
        moved = ScaledTranslation(apart * (place - (len(here) - 1) / 2) / 72, 0, axes.figure.dpi_scale_trans)
        series(axes, labels.index(label), label, own, transform=axes.transData + moved)
    axes.set_xscale("log")
    axes.set_xlim(nothing / 1.5 if somebody_has_none else low_end, high_end)
    ticks = [*([nothing] if somebody_has_none else []), *(panel.ticks or round_ticks(low_end, high_end))]
    words = binary_bytes if panel.ticks else EngFormatter("B")
    ticks_at(axes.xaxis, ticks, lambda size, _: "none" if size == nothing else words(round(size)))
    # set by hand: matplotlib takes moved points for data elsewhere
    margin = 0.08 * (max(reached) - min(reached)) or 0.05
    axes.set_ylim(min(reached) - margin, max(reached) + margin)


CHOICE: Final = (
    *(f"freq_cache[policy={policy}{ahead}]" for policy in ("static", "lfu", "lru") for ahead in ("", ",look_ahead=64")),
    "fbgemm_uvm_caching[policy=lru]",
    "fbgemm_uvm_caching[policy=lfu]",
    "colossalai[policy=dataset]",
    "cdlrm",
    "lru",
    "belady",
)
"""Policies that are drawn, as many as stay readable."""
_LOOK_AHEAD = re.compile(r",look_ahead=\d+")


def miss_ratio(source: Source) -> Figure | None:
    """Miss-ratio curves of the simulated policies, with the optimum; None where no simulation replayed any.

    Of several simulations of a stream that which counted the most batches is shown.
    """
    by_length = sorted(source.simulations, key=lambda one: one.configuration.counted_batches)
    longest = {one.stream.name: one for one in by_length if _policies(one)}
    shown = [(one, _policies(one)) for one in longest.values()]
    if not shown:
        return None
    panels = Panels(
        "Misses by cache size: simulated, no system ran",
        "Replayed without weights. A miss is a distinct row of a batch that was not cached when the batch arrived; "
        "Belady's rule, which knows the future, is the least possible for a cache that holds all rows of a batch; one "
        "that reads rows past itself can miss slightly fewer.",
        len(shown),
        columns=min(2, len(shown)),
        panel_in=(4.4, 3.6),
    )
    for (simulation, policies), axes in zip(shown, panels.flat, strict=False):
        _plot(axes, simulation, policies)
        stream, replay = simulation.stream, simulation.configuration
        facts = (
            f"{'synthetic, ' if stream.workload and not stream.data_dir else ''}scale {stream.scale}, batch "
            f"{stream.batch_size:,}, {replay.counted_batches:,} batches counted behind {replay.warmup_batches:,}"
        )
        name = stream.name if simulation.complete else f"{stream.name}, interrupted: not all sizes"
        panels.name(axes, name, facts)
        axes.set_xlabel(f"cached rows, % of {stream.rows:,} (log scale)", fontsize=LABEL)
    panels.label(y="misses, % of distinct rows")
    return panels.close()


def _plot(axes: Axes, simulation: Simulation, policies: Sequence[str]) -> None:
    """Misses over the share of cached rows, both in per cent: a line for each policy."""
    for policy in policies:
        points = sorted(
            (100 * row.slots_asked / simulation.stream.rows, 100 * (1 - row.traffic.hit_rate))
            for row in simulation.rows
            if row.policy == policy and row.traffic is not None
        )
        label = "belady, the optimum" if policy == "belady" else policy
        axes.plot(*zip(*points, strict=True), label=label, **_style(policy))
    axes.set_xscale("log")
    ticks = [100 * ratio for ratio in simulation.configuration.cache_ratios]
    ticks_at(axes.xaxis, ticks, lambda share, _: f"{share:.3g}")
    axes.set_xlim(min(ticks) / 1.15, max(ticks) * 1.15)
    axes.set_ylim(bottom=0)


def _policies(simulation: Simulation) -> list[str]:
    replayed = {row.policy for row in simulation.rows if row.traffic is not None}
    return [policy for policy in CHOICE if policy in replayed]


def _style(policy: str) -> dict[str, Any]:
    """With and without look-ahead share a colour and a mark, which is hollow and dashed with it; Belady is black."""
    if policy == "belady":
        return {"color": BLACK, "linewidth": 2.2, "zorder": 4}
    bases = list(dict.fromkeys(_LOOK_AHEAD.sub("", name) for name in CHOICE))
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


CAPTIONS: dict[Callable[[Source], Figure | None], str] = {
    throughput_by_bytes: "Throughput by device bytes, relative to the baseline, with intervals and the noise band",
    throughput_by_budget: "Throughput of rows on a drive by host budget, relative to all rows in RAM, with intervals",
    miss_ratio: "Misses by cache size, simulated, with the optimum",
    quality_by_bytes: "AUROC of approximate tables by their bytes, under the line of the exact baseline",
}
"""The figures in the order of the page, each under its function's name, with their captions."""


def figures(source: Source) -> dict[str, Figure]:
    """The figures by name; one without data is left out."""
    with look("report"):
        drawn = {draw.__name__: draw(source) for draw in CAPTIONS}
    return {name: figure for name, figure in drawn.items() if figure is not None}
