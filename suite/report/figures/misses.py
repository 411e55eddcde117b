"""Miss-ratio curves of the simulated policies, with the optimum."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.figure import Figure

from suite.report.figures.panels import LABEL, Panels
from suite.report.source import Source
from suite.simulate.results import Simulation
from suite.simulate.show import label, plot
from suite.tables.figure_style import COLOURS, DASHES, MARKERS

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
    "lru",
    "belady",
)
"""Policies that are drawn first; others where there is room."""
_LOOK_AHEAD = re.compile(r",look_ahead=\d+")
_COLUMNS = 2


def draw(source: Source) -> Figure | None:
    """The figure; None without a simulation that replayed something."""
    shown = [(one, policies) for one in source.simulations if (policies := _policies(one))]
    if not shown:
        return None
    order = sorted({policy for _, policies in shown for policy in policies}, key=_place)
    columns = min(_COLUMNS, len(shown))
    panels = Panels(TITLE, NOTE, columns=columns, lines=math.ceil(len(shown) / columns), panel_in=(4.4, 3.0))
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
