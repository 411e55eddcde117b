"""Advice as tables that hold in 80 columns, as rows of a CSV file, and as a figure."""

from itertools import groupby, zip_longest
from operator import attrgetter
from pathlib import Path

import pandas as pd
from rich.console import Console

from suite.advise.advising import Advice
from suite.advise.against import Accuracy
from suite.advise.prediction import Prediction
from suite.advise.recommend import Choice
from suite.tables.quantities import amount, binary_bytes
from suite.tables.terminal import print_line, print_table

TERMS = {
    "dense": "dense",
    "calls": "calls",
    "launches": "launch",
    "lookup": "lookup",
    "update": "update",
    "planning": "plan",
    "moving": "move",
}
"""Terms of a prediction, with their names in narrow tables."""
_SHOWN_S = 5e-6


def show(advice: Advice, console: Console) -> None:
    """Print advice; if there is no choice, the smallest device memory at which each system trains."""
    budget = "no budget" if advice.budget_bytes is None else f"budget {binary_bytes(advice.budget_bytes)}"
    print_line(
        console,
        f"{advice.workload}, scale {advice.scale}, batch {advice.shape.batch_size:,}, dim "
        f"{advice.shape.embedding_dim}, {advice.shape.optimizer}, {budget}; {_where(advice)}",
    )
    console.line()
    if advice.predictions:
        _show_predictions(advice, console)
        _show_where_time_goes(advice, console)
    for refusal in advice.refused:
        print_line(console, f"{refusal.label}: {refusal.reason}", style="dim")
    if advice.refused:
        console.line()
    if advice.choice is not None:
        _say_choice(advice.choice, console)
    else:
        _show_frontier(advice, console)


def show_accuracy(accuracy: Accuracy, console: Console) -> None:
    """Print every setting's systems, predicted and measured, then the median error."""
    same = attrgetter("workload", "data", "scale", "batch_size", "embedding_dim", "optimizer", "cache")
    for (workload, data, scale, batch_size, dim, optimizer, size), cells in groupby(accuracy.cells, same):
        setting = f"{workload}, {data} data, scale {scale}, batch {batch_size:,}, dim {dim}, {optimizer}, {size}"
        print_line(console, setting, style="bold")
        rates = [(cell, amount(cell.predicted_steps_per_s), amount(cell.measured_steps_per_s)) for cell in cells]
        lines = [[cell.system, *both, f"{100 * cell.error:+.1f} %"] for cell, *both in rates]
        print_table(console, ["system", "predicted it/s", "measured it/s", "error"], lines)
    for problem in accuracy.unreadable:
        print_line(console, f"left out {problem}", style="dim")
    for one in accuracy.left_out:
        print_line(console, f"{one.system} x {one.workload} is left out: {one.reason}", style="dim")
    if accuracy.median_absolute_error is None:
        print_line(console, "No cell could be predicted.", style="bold")
        return
    print_line(
        console,
        f"Median absolute error {100 * accuracy.median_absolute_error:.1f} % over {len(accuracy.cells)} cells, "
        f"{_where(accuracy)}",
        style="bold",
    )
    print_line(
        console,
        "it = iteration, one batch. Error: of the predicted time of a step, positive where the model was too slow; "
        "measured is the median over all turns.",
        style="dim",
    )


def frame(advice: Advice) -> pd.DataFrame:
    """A row per prediction, seconds by term."""
    names = ("system", "row_type", "basis", "cache_ratio", "slots", "device_bytes", "overflows", "step_s")
    return pd.DataFrame(
        [
            {"workload": advice.workload}
            | {name: getattr(one, name) for name in (*names, "samples_per_s", "hit_rate")}
            | {"fits": one.fits(advice.budget_bytes)}
            | {f"{term}_s": one.terms_s.get(term, 0.0) for term in TERMS}
            | {f"hidden_{term}_s": one.hidden_s.get(term, 0.0) for term in ("planning", "moving")}
            for one in advice.predictions
        ]
    )


def draw(advice: Advice, path: Path) -> None:
    """Write throughput against device memory as SVG, the same bytes for the same advice."""
    from matplotlib.figure import Figure

    from suite.tables.figure_style import COLOURS, DASHES, MARKERS, look

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


def _where(found: Advice | Accuracy) -> str:
    return f"{'calibrated on' if found.basis == 'calibrated' else 'modelled for'} {found.machine}"


def _show_predictions(advice: Advice, console: Console) -> None:
    """The fastest systems first, the sizes of each below its name."""

    def figures(one: Prediction) -> list[str]:
        return [
            "" if one.cache_ratio is None else f"{one.cache_ratio:.2%}",
            binary_bytes(one.device_bytes),
            "" if one.hit_rate is None else f"{one.hit_rate:.1%}",
            amount(one.step_s * 1e3),
            f"{one.samples_per_s:,.0f}",
            "overflow" if one.overflows else "" if one.fits(advice.budget_bytes) else "too big",
        ]

    lines = [
        [name or "", *([""] * 6 if one is None else figures(one))]
        for label, sizes in advice.by_label().items()
        for name, one in zip_longest(label.replace("[", "\n [").split("\n"), sizes, fillvalue=None)
    ]
    print_table(console, ["system", "cached", "device", "hits", "ms", "samples/s", ""], lines, text=(0, 6))


def _show_where_time_goes(advice: Advice, console: Console) -> None:
    """Terms of the fastest size of each system; those that nobody pays are left out."""

    def milliseconds(seconds: float) -> str:
        return "" if not seconds else f"{seconds * 1e3:.2f}" if seconds >= _SHOWN_S else "<0.01"

    fastest = [min(sizes, key=lambda one: one.step_s) for sizes in advice.by_label().values()]
    terms = [term for term in TERMS if any(one.terms_s.get(term) for one in fastest)]
    lines = [
        [one.label, *map(milliseconds, (*(one.terms_s.get(term, 0.0) for term in terms), sum(one.hidden_s.values())))]
        for one in fastest
    ]
    print_table(console, ["ms of a step", *(TERMS[term] for term in terms), "hidden"], lines)


def _say_choice(choice: Choice, console: Console) -> None:
    best, other = choice.best, choice.runner_up
    size = "" if best.cache_ratio is None else f", {best.slots:,} rows cached ({best.cache_ratio:.2%})"
    print_line(
        console, f"Recommended: {best.label}{size}, {binary_bytes(best.device_bytes)} of device memory", style="bold"
    )
    print_line(console, f"Because {choice.reason}.")
    if other is not None:
        runner_up = f"{other.label}, {other.samples_per_s:,.0f} samples/s, {binary_bytes(other.device_bytes)}"
        print_line(console, f"Runner-up: {runner_up}")
    if choice.changes:
        print_line(console, "The answer changes")
        for change in choice.changes:
            print_line(console, f"- {change}", indent=2)


def _show_frontier(advice: Advice, console: Console) -> None:
    why = "Nothing fits." if advice.predictions else "Nothing could be predicted."
    print_line(console, f"{why} The smallest device memory at which each system trains:", style="bold")
    console.line()
    lines = [
        [row.label, binary_bytes(row.device_bytes), row.dominated_by, binary_bytes(row.host_bytes)]
        for row in sorted(advice.frontier, key=lambda row: row.device_bytes)
    ]
    print_table(console, ["system", "device from", "mostly", "host"], lines, text=(0, 2))
