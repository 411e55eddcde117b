"""A comparison for machines: one JSON object, in SI units; what does not exist is null."""

from __future__ import annotations

import json
import math

from suite.compare.changes import Speed
from suite.compare.compare import Compared, Comparison
from suite.compare.gate import Verdict
from suite.compare.runs import Run, Side


def to_json(comparison: Comparison, verdict: Verdict | None) -> str:
    """The whole comparison, cells without a change included."""
    content = {
        "run_a": _run(comparison.before),
        "run_b": _run(comparison.after),
        "environment": [
            {"where": one.where, "name": one.name, "a": one.before, "b": one.after} for one in comparison.differences
        ],
        "warnings": comparison.warnings,
        "cells": [_cell(cell) for cell in comparison.cells],
        "only_in_a": [_only(label, side) for label, side in comparison.only_before],
        "only_in_b": [_only(label, side) for label, side in comparison.only_after],
        "gate": verdict and _gate(verdict),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _run(run: Run) -> dict[str, object]:
    return {
        "path": str(run.path),
        "records": sum(len(group.records) for group in run.groups),
        "problems": [{"path": str(problem.path), "reason": problem.reason} for problem in run.problems],
    }


def _cell(cell: Compared) -> dict[str, object]:
    found = _named(cell.label, cell.pair.before)
    for letter, side in zip("ab", cell.pair, strict=True):
        row = side.row
        found |= {
            f"machine_{letter}": side.group.key.machine,
            f"status_{letter}": row.status.value,
            f"verified_{letter}": row.verified,
            f"samples_per_s_{letter}": row.samples_per_s,
        }
    changes = [
        {"quantity": one.quantity, "a": _plain(one.before), "b": _plain(one.after), "text": one.text}
        for one in cell.changes
    ]
    return found | {"relative_speed": _speed(cell.speed), "changes": changes}


def _speed(speed: Speed) -> dict[str, object]:
    ratio = speed.ratio
    return {
        "a": speed.before,
        "b": speed.after,
        "builds_a": speed.builds[0],
        "builds_b": speed.builds[1],
        "ratio": ratio and ratio.value,
        "low": ratio and ratio.low,
        "high": ratio and ratio.high,
        "beyond_noise": speed.beyond_noise,
        "not_judged": speed.unjudged and speed.unjudged.reason,
    }


def _named(label: str, side: Side) -> dict[str, object]:
    cell = side.cell
    return {"label": label, "system": cell.system, "workload": cell.workload, "setting": cell.setting}


def _only(label: str, side: Side) -> dict[str, object]:
    return _named(label, side) | {"machine": side.group.key.machine, "status": side.row.status.value}


def _gate(verdict: Verdict) -> dict[str, object]:
    return {
        "fail_if_slower": verdict.threshold,
        "exit_code": verdict.exit_code,
        "judged": verdict.judged,
        "failures": verdict.failures,
        "too_noisy": verdict.noisy,
        "not_judged": {reason.reason: labels for reason, labels in verdict.unjudged.items()},
    }


def _plain(value: float | str | None) -> float | str | None:
    """JSON has no NaN: as in records, it is a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
