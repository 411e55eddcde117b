"""Miss-ratio curves of the simulated policies, with the optimum."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report.figures.panels import LABEL, SMALL, Panels, ticks_at
from suite.report.source import Source
from suite.simulate.results import Simulation
from suite.tables.figure_style import BLACK, COLOURS, DASHES, MARKERS

TITLE = "Misses by cache size: simulated, no system ran"
NOTE = (
    "Replayed without weights. A miss is a distinct row of a batch that was not cached when the batch arrived; "
    "Belady's rule, which knows the future, is the least possible for a cache that holds all rows of a batch; one that "
    "reads rows past itself can miss slightly fewer."
)
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
    "s3fifo",
    "belady",
)
"""Policies that are drawn first; others where there is room."""
FINE = "lru at every size, by stack distance"
_LOOK_AHEAD = re.compile(r",look_ahead=\d+")
_COLUMNS = 2
_PANEL_IN, _HEIGHT_IN = 4.4, 3.0


def draw(source: Source) -> Figure | None:
    """The figure; None without a simulation that replayed something."""
    found = [one for one in source.simulations if any(row.traffic is not None for row in one.rows)]
    if not found:
        return None
    shown = [_policies(simulation) for simulation in found]
    order = sorted(set(itertools.chain(*shown)), key=_place)
    columns = min(_COLUMNS, len(found))
    panels = Panels(
        TITLE,
        NOTE,
        heights_in=[_HEIGHT_IN] * math.ceil(len(found) / columns),
        columns=columns,
        panel_in=_PANEL_IN,
    )
    for simulation, policies, axes in zip(found, shown, itertools.chain(*panels.axes), strict=False):
        _panel(axes, simulation, policies, order)
        curve = _fine(simulation, source)
        if curve is not None:
            _draw_fine(axes, curve, simulation)
        stream, counted = simulation.stream, simulation.configuration.counted_batches
        facts = f"scale {stream.scale}, batch {stream.batch_size:,}, seed {stream.seed}, {counted:,} batches counted"
        name = stream.name if simulation.complete else f"{stream.name}, interrupted: not all sizes"
        panels.name(axes, None, name, facts)
        axes.set_xlabel(f"cached rows, % of {stream.rows:,} (log scale)", fontsize=LABEL)
    for line in panels.axes:
        line[0].set_ylabel("misses, % of distinct rows", fontsize=LABEL)
    return panels.close(first=[_label(policy) for policy in order])


def _policies(simulation: Simulation) -> list[str]:
    """The choice first, then others, as many as stay readable."""
    replayed = {row.policy for row in simulation.rows if row.traffic is not None}
    return sorted((name for name in simulation.configuration.policies if name in replayed), key=_place)[: len(CHOICE)]


def _place(policy: str) -> tuple[int, str]:
    return (CHOICE.index(policy) if policy in CHOICE else len(CHOICE)), policy


def _panel(axes: Axes, simulation: Simulation, policies: Sequence[str], order: Sequence[str]) -> None:
    for policy in policies:
        points = sorted(
            (100 * row.slots_asked / simulation.stream.rows, 100 * (1 - row.traffic.hit_rate))
            for row in simulation.rows
            if row.policy == policy and row.traffic is not None
        )
        axes.plot(*zip(*points, strict=True), label=_label(policy), **_style(policy, order))
    axes.set_xscale("log")
    ratios = [100 * ratio for ratio in simulation.configuration.cache_ratios]
    ticks_at(axes.xaxis, ratios, lambda share, _: f"{share:.3g}")
    axes.set_xlim(min(ratios) / 1.15, max(ratios) * 1.15)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=SMALL)


def _label(policy: str) -> str:
    return "belady, the optimum" if policy == "belady" else policy


def _style(policy: str, order: Sequence[str]) -> dict[str, Any]:
    if policy == "belady":
        return {"color": BLACK, "linewidth": 2.2, "zorder": 4}
    if policy == "compulsory":
        return {"color": BLACK, "linewidth": 0.9, "linestyle": ":"}
    # with and without look-ahead share a colour and a mark, which is hollow and dashed with it
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


def _fine(simulation: Simulation, source: Source) -> dict[str, Any] | None:
    """The LRU curve of the same batches of the same stream; None where none was computed."""
    stream, configuration = simulation.stream, simulation.configuration
    wanted = {name: getattr(stream, name) for name in ("trace_file", "data_dir", "scale", "batch_size", "seed")}
    span = (stream.name, configuration.warmup_batches, configuration.counted_batches)
    for one in source.curves:
        if (one["trace"], one.get("warmup_batches"), one.get("counted_batches")) == span and one.get(
            "stream"
        ) == wanted:
            curve: dict[str, Any] = one["curves"]["all"]
            return curve
    return None


def _draw_fine(axes: Axes, curve: dict[str, Any], simulation: Simulation) -> None:
    """The sizes that every batch fits into; smaller caches miss more than a stack distance says."""
    low, high = axes.get_xlim()
    points = [
        (100 * slots / simulation.stream.rows, 100 * rate)
        for slots, rate, holds in zip(
            curve["slots"], curve["unique_miss_rate"], curve["holds_every_batch"], strict=True
        )
        if holds and low <= 100 * slots / simulation.stream.rows <= high
    ]
    if points:
        sampled = curve.get("sampled_share", 1.0) < 1
        label = f"{FINE}{', from a sample of rows' if sampled else ''}"
        axes.plot(*zip(*points, strict=True), label=label, color="#333333", linewidth=1.2, linestyle=(0, (1, 1)))
