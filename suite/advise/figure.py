"""Throughput against device memory, as a figure."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from suite.advise.advising import Advice
from suite.tables.figure_style import COLOURS, DASHES, MARKERS, look


def draw(advice: Advice, path: Path) -> None:
    """Write the figure as SVG, the same bytes for the same advice."""
    with look("advise"):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.subplots()
        for number, (label, points) in enumerate(advice.by_label().items()):
            axes.plot(
                [one.device_bytes / 2**30 for one in points],
                [one.samples_per_s for one in points],
                label=label,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
                markersize=4,
            )
        if advice.budget_bytes is not None:
            axes.axvline(advice.budget_bytes / 2**30, color="#555555", linewidth=1, label="budget")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        word = "predicted" if advice.basis == "calibrated" else "modelled"
        axes.set(xlabel="device memory, GiB", ylabel=f"samples/s, {word}", title=f"{advice.workload}, {advice.machine}")
        axes.legend(fontsize=7)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
