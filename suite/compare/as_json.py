"""A comparison for machines: one JSON object, in SI units; what does not exist is null."""

from __future__ import annotations

import json
import math

from suite.compare.compare import Compared, Comparison
from suite.compare.gate import Verdict
from suite.compare.runs import Run, Side
from suite.compare.speeds import Speed


def to_json(comparison: Comparison, verdict: Verdict | None) -> str:
    """The whole comparison, cells without a change included."""
    content = {
        "run_a": _run(comparison.before),
        "run_b": _run(comparison.after),
        "environment": [
            {"where": one.where, "name": one.name, "a": one.before, "b": one.after} for one in comparison.differences
        ],
        "warnings": list(comparison.warnings),
        "cells": [_cell(cell) for cell in comparison.cells],
        "only_in_a": [{"label": label, **_named(side)} for label, side in comparison.only_before],
        "only_in_b": [{"label": label, **_named(side)} for label, side in comparison.only_after],
        "gate": None if verdict is None else _gate(verdict),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _run(run: Run) -> dict[str, object]:
    return {
        "path": str(run.path),
        "records": sum(len(group.records) for group in run.groups),
        "problems": [{"path": str(problem.path), "reason": problem.reason} for problem in run.problems],
    }


def _cell(cell: Compared) -> dict[str, object]:
    before, after = cell.pair
    return {
        "label": cell.label,
        "system": before.cell.system,
        "workload": before.cell.workload,
        "setting": before.cell.setting,
        "machine_a": before.group.key.machine,
        "machine_b": after.group.key.machine,
        "status_a": before.row.status.value,
        "status_b": after.row.status.value,
        "verified_a": before.row.verified,
        "verified_b": after.row.verified,
        "samples_per_s_a": before.row.samples_per_s,
        "samples_per_s_b": after.row.samples_per_s,
        "relative_speed": _speed(cell.speed),
        "changes": [
            {"quantity": one.quantity, "a": _plain(one.before), "b": _plain(one.after), "text": one.text}
            for one in cell.changes
        ],
    }


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


def _named(side: Side) -> dict[str, object]:
    return {
        "system": side.cell.system,
        "workload": side.cell.workload,
        "setting": side.cell.setting,
        "machine": side.group.key.machine,
        "status": side.row.status.value,
    }


def _gate(verdict: Verdict) -> dict[str, object]:
    return {
        "fail_if_slower": verdict.threshold,
        "exit_code": verdict.exit_code,
        "judged": verdict.judged,
        "failures": list(verdict.failures),
        "too_noisy": list(verdict.noisy),
        "not_judged": {reason.reason: labels for reason, labels in verdict.unjudged.items()},
    }


def _plain(value: float | str | None) -> float | str | None:
    """JSON has no NaN: as in records, it is a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
