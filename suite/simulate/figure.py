"""A simulation as a figure: miss rate by cache size, a line per policy, with the optimum."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from suite.simulate.results import Simulation
from suite.tables.figure_style import BLACK, COLOURS, DASHES, MARKERS, look

FILE = "miss_rate.svg"
_RANKING = re.compile(r"policy=\w+")
_BOUNDS: dict[str, dict[str, Any]] = {
    "belady": {"color": BLACK, "linewidth": 2.2, "zorder": 4},
    "compulsory": {"color": BLACK, "linewidth": 0.9, "linestyle": ":"},
}


def label(policy: str) -> str:
    """What a figure calls a policy."""
    return "belady, the optimum" if policy == "belady" else policy


def plot(axes: Axes, simulation: Simulation, styles: Mapping[str, dict[str, Any]]) -> None:
    """Misses over the share of cached rows, both in per cent: a line for each policy that `styles` has one for."""
    for policy, style in styles.items():
        points = sorted(
            (100 * row.slots_asked / simulation.stream.rows, 100 * (1 - row.traffic.hit_rate))
            for row in simulation.rows
            if row.policy == policy and row.traffic is not None
        )
        if points:
            axes.plot(*zip(*points, strict=True), label=label(policy), **(_BOUNDS.get(policy) or style))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([100 * ratio for ratio in simulation.configuration.cache_ratios]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _position: f"{share:.3g}"))
    axes.set_ylim(bottom=0)


def draw(simulation: Simulation, folder: Path) -> Path:
    """Write the figure, the same bytes for the same simulation. `folder` exists. Returns the file."""
    with look("simulate"):
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        plot(axes, simulation, _styles(simulation.configuration.policies))
        axes.set(xlabel="cached rows, % of all", ylabel="unique miss rate, % of a batch's distinct rows")
        axes.set_title(f"{simulation.stream.name}: misses by cache size")
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        path = folder / FILE
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What differs in `policy=` alone has one colour, and dashes of its own."""
    styles: dict[str, dict[str, Any]] = {}
    colours: dict[str, str] = {}
    dashes: dict[str, Any] = {}
    for number, policy in enumerate(policies):
        ranking = "".join(_RANKING.findall(policy))
        styles[policy] = {
            "color": colours.setdefault(_RANKING.sub("", policy), COLOURS[len(colours) % len(COLOURS)]),
            "linestyle": dashes.setdefault(ranking, DASHES[len(dashes) % len(DASHES)]) if ranking else "-",
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 3.5,
            "linewidth": 1.1,
        }
    return styles
