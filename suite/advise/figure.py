"""Throughput against device memory, as a figure."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from suite.advise.advice import Advice
from suite.advise.model import Prediction

# Okabe and Ito's colours, which stay apart for the colour-blind; marks keep them apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")


def draw(advice: Advice, path: Path) -> None:
    """Write the figure as SVG, the same bytes for the same advice."""
    look = mpl.rc_context(
        {
            "svg.hashsalt": "advise",
            "font.size": 9,
            "font.family": "DejaVu Sans",
            "axes.grid": True,
            "grid.color": "#DDDDDD",
        }
    )
    with look:
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.subplots()
        for number, (label, points) in enumerate(_by_label(advice).items()):
            axes.plot(
                [one.device_bytes / 2**30 for one in points],
                [one.samples_per_s for one in points],
                label=label,
                color=_COLOURS[number % len(_COLOURS)],
                marker=_MARKS[number % len(_MARKS)],
                linestyle=_DASHES[number // len(_COLOURS) % len(_DASHES)],
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


def _by_label(advice: Advice) -> dict[str, list[Prediction]]:
    lines: dict[str, list[Prediction]] = {}
    for one in sorted(advice.predictions, key=lambda one: one.device_bytes):
        lines.setdefault(one.label, []).append(one)
    return lines
