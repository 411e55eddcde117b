"""A simulation as a figure: miss rate by cache size, a line per policy, with the optimum."""

import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from suite.simulate.results import Simulation
from suite.tables.figure_style import COLOURS, DASHES, MARKERS, look

FILE = "miss_rate.svg"
_RANKING = re.compile(r"policy=\w+")
_BOUNDS = {
    "belady": {"color": "black", "linewidth": 2.2},
    "compulsory": {"color": "black", "linewidth": 0.9, "linestyle": ":"},
}


def draw(simulation: Simulation, folder: Path) -> Path:
    """Write the figure, the same bytes for the same simulation. `folder` exists. Returns the file."""
    with look("simulate"):
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        colours: dict[str, str] = {}
        dashes: dict[str, Any] = {}
        for number, policy in enumerate(simulation.configuration.policies):
            points = sorted(
                (row.slots_asked / simulation.stream.rows, 100 * (1 - row.traffic.hit_rate))
                for row in simulation.rows
                if row.policy == policy and row.traffic is not None
            )
            if not points:
                continue
            # what differs in `policy=` alone has one colour, and dashes of its own
            ranking = "".join(_RANKING.findall(policy))
            style = {
                "color": colours.setdefault(_RANKING.sub("", policy), COLOURS[len(colours) % len(COLOURS)]),
                "linestyle": dashes.setdefault(ranking, DASHES[len(dashes) % len(DASHES)]) if ranking else "-",
                "marker": MARKERS[number % len(MARKERS)],
                "markersize": 3.5,
                "linewidth": 1.1,
            }
            label = f"{policy}, the optimum" if policy == "belady" else policy
            axes.plot(*zip(*points, strict=True), label=label, **(_BOUNDS.get(policy) or style))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(simulation.configuration.cache_ratios)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _position: f"{100 * ratio:.3g}"))
        axes.set(xlabel="cached rows, % of all", ylabel="unique miss rate, % of a batch's distinct rows")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{simulation.stream.name}: misses by cache size")
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        path = folder / FILE
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path
