"""Advice as tables that hold in 80 columns, and as rows of a CSV file."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from suite.advise.advising import Advice
from suite.advise.against import Accuracy, Compared
from suite.advise.calibrate.kernels import RowType
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
    where = "calibrated on" if advice.basis == "calibrated" else "modelled for"
    budget = "no budget" if advice.budget_bytes is None else f"budget {gib(advice.budget_bytes)}"
    console.print(
        f"{advice.workload}, scale {advice.scale}, batch {advice.shape.batch_size:,}, dim "
        f"{advice.shape.embedding_dim}, {advice.shape.optimizer}, {budget}; {where} {advice.machine}",
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
    where = "calibrated on" if accuracy.basis == "calibrated" else "modelled for"
    console.print(
        f"Median absolute error {100 * accuracy.median_absolute_error:.1f} % over {len(accuracy.cells)} cells, {where} "
        f"{accuracy.machine}",
        style="bold",
        soft_wrap=True,
    )
    console.print(
        "it = iteration, one batch. Error: of the predicted time of a step, positive where the model was too slow; "
        "measured is the median over all turns.",
        style="dim",
        soft_wrap=True,
    )


def frame(advice: Advice) -> pd.DataFrame:
    """A row per prediction, seconds by term."""
    return pd.DataFrame([_record(advice, one) for one in advice.predictions])


def compared(accuracy: Accuracy) -> pd.DataFrame:
    """A row per system and setting that was predicted and measured."""
    return pd.DataFrame([cell.model_dump() for cell in accuracy.cells])


def _record(advice: Advice, one: Prediction) -> dict[str, object]:
    return {
        "workload": advice.workload,
        "system": one.system,
        "row_type": str(one.row_type),
        "basis": one.basis,
        "cache_ratio": one.cache_ratio,
        "slots": one.slots,
        "device_bytes": one.device_bytes,
        "fits": advice.budget_bytes is None or one.device_bytes <= advice.budget_bytes,
        "overflows": one.overflows,
        "step_s": one.step_s,
        "samples_per_s": one.samples_per_s,
        "hit_rate": one.hit_rate,
        **{f"{term}_s": one.terms_s.get(term, 0.0) for term in TERMS},
        **{f"hidden_{term}_s": one.hidden_s.get(term, 0.0) for term in ("planning", "moving")},
    }


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for name, numeric in columns:
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    return table


def _predictions(advice: Advice) -> Table:
    """The fastest systems first, the sizes of each below its name."""
    table = _table(
        ("system", False),
        ("cached", True),
        ("device", True),
        ("hits", True),
        ("ms", True),
        ("samples/s", True),
        ("", False),
    )
    for sizes in advice.by_label().values():
        names = _lines(sizes[0])
        for number in range(max(len(sizes), len(names))):
            name = names[number] if number < len(names) else ""
            figures = _figures(advice, sizes[number]) if number < len(sizes) else ()
            table.add_row(name, *figures)
    return table


def _figures(advice: Advice, one: Prediction) -> tuple[str, ...]:
    fits = advice.budget_bytes is None or one.device_bytes <= advice.budget_bytes
    return (
        "" if one.cache_ratio is None else f"{one.cache_ratio:.2%}",
        gib(one.device_bytes),
        "" if one.hit_rate is None else f"{one.hit_rate:.1%}",
        amount(one.step_s * 1e3),
        f"{one.samples_per_s:,.0f}",
        "overflow" if one.overflows else "" if fits else "too big",
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
