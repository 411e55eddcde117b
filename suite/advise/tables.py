"""Advice as tables that hold in 80 columns, as rows of a CSV file, and as a figure."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from suite.advise.advising import Advice
from suite.advise.against import Accuracy, Compared
from suite.advise.calibrate.calibration import RowType
from suite.advise.frontier import Frontier
from suite.advise.model import Prediction
from suite.advise.recommend import gib
from suite.tables.quantities import amount

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
    """Print advice; if nothing fits, the smallest device memory at which each system trains."""
    budget = "no budget" if advice.budget_bytes is None else f"budget {gib(advice.budget_bytes)}"
    console.print(
        f"{advice.workload}, scale {advice.scale}, batch {advice.shape.batch_size:,}, dim "
        f"{advice.shape.embedding_dim}, {advice.shape.optimizer}, {budget}; {_where(advice)}",
        soft_wrap=True,
    )
    if advice.predictions:
        console.print()
        console.print(_predictions(advice))
        console.print(_where_time_goes(advice))
    for refusal in advice.refused:
        console.print(f"{refusal.system} {refusal.row_type}: {refusal.reason}", style="dim", soft_wrap=True)
    console.print()
    _say_choice(advice, console)
    if advice.choice is None:
        console.print()
        console.print(_frontier(advice))
        reasons = {row.dominated_by or f"{row.system} {row.row_type}": row.why for row in advice.frontier}
        for what, why in reasons.items():
            console.print(f"{what}: {why}", style="dim", soft_wrap=True)


def show_accuracy(accuracy: Accuracy, console: Console) -> None:
    """Print every setting's systems, predicted and measured, then the median error."""
    settings: dict[str, list[Compared]] = {}
    for cell in accuracy.cells:
        data = f"{cell.workload}, {cell.data} data, scale {cell.scale}"
        setting = f"{data}, batch {cell.batch_size:,}, {cell.optimizer}"
        settings.setdefault(setting, []).append(cell)
    for setting, cells in settings.items():
        console.print(setting, style="bold", soft_wrap=True)
        table = _table(("system", False), ("predicted it/s", True), ("measured it/s", True), ("error", True))
        for cell in cells:
            rates = (amount(cell.predicted_steps_per_s), amount(cell.measured_steps_per_s))
            table.add_row(cell.system, *rates, f"{100 * cell.error:+.1f} %")
        console.print(table)
        console.print()
    for one in accuracy.left_out:
        console.print(f"{one.system} x {one.workload} is left out: {one.reason}", style="dim", soft_wrap=True)
    if accuracy.median_absolute_error is None:
        console.print("No cell could be predicted.", style="bold")
        return
    console.print(
        f"Median absolute error {100 * accuracy.median_absolute_error:.1f} % over {len(accuracy.cells)} cells, "
        f"{_where(accuracy)}",
        style="bold",
        soft_wrap=True,
    )
    console.print(
        "it = iteration, one batch. Error: of the predicted time of a step, positive where the model was too slow; "
        "measured is the median over all turns.",
        style="dim",
        soft_wrap=True,
    )


def frame(found: Advice | Accuracy) -> pd.DataFrame:
    """A row per prediction, seconds by term; or a row per system and setting that was predicted and measured."""
    if isinstance(found, Accuracy):
        return pd.DataFrame([cell.model_dump() for cell in found.cells])
    plain = ("basis", "cache_ratio", "slots", "device_bytes")
    measured = ("overflows", "step_s", "samples_per_s", "hit_rate")
    return pd.DataFrame(
        [
            {"workload": found.workload, "system": one.system, "row_type": str(one.row_type)}
            | {name: getattr(one, name) for name in plain}
            | {"fits": found.fits(one)}
            | {name: getattr(one, name) for name in measured}
            | {f"{term}_s": one.terms_s.get(term, 0.0) for term in TERMS}
            | {f"hidden_{term}_s": one.hidden_s.get(term, 0.0) for term in ("planning", "moving")}
            for one in found.predictions
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


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for name, numeric in columns:
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    return table


def _predictions(advice: Advice) -> Table:
    """The fastest systems first, the sizes of each below its name."""
    numbers = ("cached", "device", "hits", "ms", "samples/s")
    table = _table(("system", False), *((name, True) for name in numbers), ("", False))
    for sizes in advice.by_label().values():
        names = _lines(sizes[0])
        for name, one in zip_longest(names, sizes, fillvalue=None):
            table.add_row(name or "", *(() if one is None else _figures(advice, one)))
    return table


def _figures(advice: Advice, one: Prediction) -> tuple[str, ...]:
    return (
        "" if one.cache_ratio is None else f"{one.cache_ratio:.2%}",
        gib(one.device_bytes),
        "" if one.hit_rate is None else f"{one.hit_rate:.1%}",
        amount(one.step_s * 1e3),
        f"{one.samples_per_s:,.0f}",
        "overflow" if one.overflows else "" if advice.fits(one) else "too big",
    )


def _where_time_goes(advice: Advice) -> Table:
    """Terms of the fastest size of each system; those that nobody pays are left out."""
    fastest = [min(sizes, key=lambda one: one.step_s) for sizes in advice.by_label().values()]
    terms = [term for term in TERMS if any(one.terms_s.get(term) for one in fastest)]
    table = _table(("ms of a step", False), *((TERMS[term], True) for term in terms), ("hidden", True))
    for one in fastest:
        table.add_row(
            "\n".join(_lines(one)),
            *(_milliseconds(one.terms_s.get(term, 0.0)) for term in terms),
            _milliseconds(sum(one.hidden_s.values())),
        )
    return table


def _milliseconds(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1e3:.2f}" if seconds >= _SHOWN_S else "<0.01"


def _lines(one: Prediction | Frontier) -> list[str]:
    """A variant's name and row type, its parameters below, so that columns stay narrow."""
    name, bracket, parameters = one.system.partition("[")
    row_type = "" if one.row_type is RowType.FP32 else f" {one.row_type}"
    return [f"{name}{row_type}", *([f" {bracket}{parameters}"] if bracket else [])]


def _say_choice(advice: Advice, console: Console) -> None:
    choice = advice.choice
    if choice is None:
        console.print("Nothing fits. The smallest device memory at which each system trains:", style="bold")
        return
    best = choice.best
    size = "" if best.cache_ratio is None else f", {best.slots:,} rows cached ({best.cache_ratio:.2%})"
    console.print(f"Recommended: {best.label}{size}, {gib(best.device_bytes)} of device memory", style="bold")
    console.print(f"Because {choice.reason}.", soft_wrap=True)
    if choice.runner_up is not None:
        other = choice.runner_up
        console.print(f"Runner-up: {other.label}, {other.samples_per_s:,.0f} samples/s, {gib(other.device_bytes)}")
    if choice.changes:
        console.print("The answer changes")
        for change in choice.changes:
            console.print(f"- {change}", soft_wrap=True)


def _frontier(advice: Advice) -> Table:
    table = _table(("system", False), ("device from", True), ("mostly", False), ("host", True))
    for row in sorted(advice.frontier, key=lambda one: (one.device_bytes is None, one.device_bytes or 0)):
        trains = "never" if row.device_bytes is None else gib(row.device_bytes)
        table.add_row("\n".join(_lines(row)), trains, row.dominated_by, gib(row.host_bytes))
    return table
