"""A description as a figure: accesses by rank."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from workloads.describe.description import Description, TableFigures

RANK_FREQUENCY = "rank_frequency.svg"
# Okabe and Ito's colours, which stay apart for the colour-blind; dashes keep them apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def draw(description: Description, folder: Path) -> None:
    """Draw all tables together, and the five with most ids seen; the same bytes for the same description.

    Args:
        description: What to draw.
        folder: A directory that exists; gets `rank_frequency.svg`.
    """
    pooled, *tables = description.tables
    largest = sorted(tables, key=lambda table: -table.distinct)
    look = mpl.rc_context(
        {"svg.hashsalt": "describe", "font.family": "DejaVu Sans", "axes.grid": True, "grid.color": "#DDDDDD"}
    )
    with look:
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.loglog(*_points(pooled), color="black", linewidth=2.0, label=pooled.table)
        for table, colour, dashes in zip(largest, _COLOURS, _DASHES, strict=False):
            axes.loglog(*_points(table), color=colour, linestyle=dashes, linewidth=1.2, label=table.table)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set(xlabel="rank of the id", ylabel="accesses", title=f"{description.dataset}: accesses by rank")
        axes.legend()
        figure.savefig(folder / RANK_FREQUENCY, metadata={"Date": None, "Creator": None})


def _points(table: TableFigures) -> tuple[list[int], list[int]]:
    """Ranks, and the accesses at each."""
    return [rank for rank, _ in table.curve], [accesses for _, accesses in table.curve]
