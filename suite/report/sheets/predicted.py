"""What the cost model said before the cells ran, beside what was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from suite.records.groups import Group
from suite.records.record import Record
from suite.report.sheets.blocks import block_facts, headings, raw_frame, record_keys, setting_numbers
from suite.report.sheets.sheet import Block, Head, Line, Sheet
from suite.report.source import Source
from suite.tables.quantities import amount
from suite.tables.rows import Row, merged_rows

_HEADS = (
    Head(words="system", text=True),
    Head(words="predicted it/s"),
    Head(words="measured it/s"),
    Head(words="error of the time of a step"),
)
_MEDIAN_HEADS = (
    Head(words="dataset", text=True),
    Head(words="cells"),
    Head(words="median absolute error"),
)
_LEGEND = (
    "Predicted: by a cost model calibrated on the same machine before the cells ran (python -m suite advise); it = "
    "iteration, one batch.",
    "Error: of the predicted time of a step relative to the measured one, positive where the model was too slow; "
    "medians over rounds.",
    "A cell here is a system in a setting, its rounds merged. A median absolute error is taken over cells of one "
    "machine only.",
)
_ALL = "all datasets"
_NUMBERS = {
    "system": "object",
    "predicted_steps_per_s": "Float64",
    "steps_per_s": "Float64",
    "prediction_error": "Float64",
    "cells": "Int64",
    "median_absolute_error": "Float64",
}
Machine = tuple[str, str, int]
"""Device, digest of the machine, and threads."""


def predicted_sheet(source: Source) -> Sheet | None:
    """A block per group with predictions, then the median errors by machine; None where nothing was predicted."""
    blocks, numbers = [], []
    errors: defaultdict[Machine, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    terms: dict[str, None] = {}
    for group, heading in zip(source.groups, headings(source.groups), strict=True):
        rows = [row for row in merged_rows(group) if row.prediction_error is not None]
        if not rows:
            continue
        blocks.append(_block(group, heading, rows))
        for row in rows:
            runs = group.rounds_by_system[row.system]
            milliseconds = _terms_ms(runs)
            terms |= dict.fromkeys(milliseconds)
            numbers.append(setting_numbers(group, runs) | _numbers(row) | milliseconds)
        found = [abs(row.prediction_error) for row in rows if row.prediction_error is not None]
        errors[_machine(group)][f"{group.title}, {group.cell.data}"] += found
    if not blocks:
        return None
    for machine, by_dataset in errors.items():
        blocks.append(_medians_block(machine, by_dataset))
        numbers += _medians_numbers(machine, by_dataset)
    return Sheet(
        name="predicted",
        title="Predicted and measured speed",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers, _NUMBERS | dict.fromkeys(terms, "Float64")),
    )


def _block(group: Group, heading: str, rows: Sequence[Row]) -> Block:
    return Block(
        heading=heading,
        facts=block_facts(group),
        heads=_HEADS,
        lines=tuple(
            Line(
                cells=(
                    row.system,
                    amount(row.predicted_steps_per_s),
                    amount(row.steps_per_s),
                    f"{100 * (row.prediction_error or 0.0):+.1f} %",
                ),
                keys=record_keys(group.rounds_by_system[row.system]),
            )
            for row in rows
        ),
    )


def _numbers(row: Row) -> dict[str, object]:
    return {
        "system": row.system,
        "predicted_steps_per_s": row.predicted_steps_per_s,
        "steps_per_s": row.steps_per_s,
        "prediction_error": row.prediction_error,
    }


def _terms_ms(runs: Sequence[Record]) -> dict[str, float]:
    """What the predicted step is made of, in milliseconds by column: medians over the rounds that were predicted."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.prediction is not None and run.measurement is not None:
            for name, seconds in run.prediction.terms_s.items():
                found[f"predicted_{name.replace(' ', '_')}_ms"].append(1e3 * seconds)
            for name, seconds in run.prediction.hidden_s.items():
                found[f"hidden_{name.replace(' ', '_')}_ms"].append(1e3 * seconds)
    return {name: statistics.median(values) for name, values in found.items()}


def _machine(group: Group) -> Machine:
    return group.key.device, group.key.machine, group.key.threads


def _medians(by_dataset: Mapping[str, Sequence[float]]) -> dict[str, tuple[int, float]]:
    """Cells and median by dataset, and of all."""
    every = {**by_dataset, _ALL: [error for errors in by_dataset.values() for error in errors]}
    return {name: (len(errors), statistics.median(errors)) for name, errors in every.items()}


def _medians_block(machine: Machine, by_dataset: Mapping[str, Sequence[float]]) -> Block:
    device, digest, threads = machine
    return Block(
        heading=f"Median absolute error on {device} (machine {digest}, {threads} threads)",
        heads=_MEDIAN_HEADS,
        lines=tuple(
            Line(cells=(name, str(cells), f"{100 * error:.1f} %"))
            for name, (cells, error) in _medians(by_dataset).items()
        ),
    )


def _medians_numbers(machine: Machine, by_dataset: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    device, _, threads = machine
    return [
        {
            "kind": "median over cells",
            "workload": name,
            "device": device,
            "threads": threads,
            "cells": cells,
            "median_absolute_error": error,
        }
        for name, (cells, error) in _medians(by_dataset).items()
    ]
