"""Two runs compared: speed beside the baseline's in both, what else changed, and their environments."""

import enum
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from suite.compare.runs import NoComparison, RunRecords, join, place
from suite.records.groups import base_name, is_baseline, mixes_virtual
from suite.records.record import Record
from suite.tables.formatting import MISSING, amount, megabytes, percent, score
from suite.tables.rows import Row, one_line
from suite.tables.statistics import Estimate, log_speeds, samples_of, unpaired_ratio

_ROUNDING = 1e-9
"""An interval may miss 1 by so much through the rounding of logarithms alone, where builds do not differ at all."""


class Unjudged(enum.Enum):
    """Reasons why a change of speed cannot be told from noise, each with a remedy."""

    NOT_MEASURED = ("not timed in both runs", "run systems that end ok in both, and not with another one's kernel")
    SAME_RECORDS = (
        "the same records in both runs, not measured again",
        "measure RUN_B anew, into a directory of its own",
    )
    IS_THE_BASELINE = ("the baseline itself", "add the systems in question to both runs")
    NO_BASELINE = ("no baseline beside it, in one run at least", "run full_gpu with it, under the same options")
    ANOTHER_MACHINE = (
        "measured on two machines, or with other threads",
        "measure both runs on one machine with as many threads",
    )
    NO_INTERVAL = ("a single build: no interval", "run both with --rounds 3 or more")

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy


class Quantity(NamedTuple):
    """A number of a `Row` that counts as changed from a difference above `tolerance` on.

    The tolerance is relative to the value of RUN_A unless `absolute` formats the difference itself.
    """

    field: str
    title: str
    show: Callable[[float | None], str]
    tolerance: float
    absolute: Callable[[float], str] | None = None


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-'}{amount(abs(value))}"


def _megabytes(value: float | None) -> str:
    return MISSING if value is None else f"{megabytes(value)} MB"


_ON_DEVICE = {"rows": "rows", "state": "optimizer state", "index": "index", "staging": "staging"}
_ON_DEVICE |= {"allocated": "peak allocated", "reserved": "peak reserved"}
QUANTITIES = (
    Quantity("auroc", "AUROC", partial(score, digits=5), 1e-4, _signed),
    Quantity("accuracy", "accuracy", partial(score, digits=5), 1e-4, _signed),
    *(
        Quantity(f"device_{name}_bytes", f"{title} on the device", _megabytes, 0.01)
        for name, title in _ON_DEVICE.items()
    ),
    Quantity("host_peak_rss_bytes", "peak resident on the host", _megabytes, 0.05),
    Quantity("hit_rate", "hit rate", lambda rate: percent(rate, 2), 1e-3, lambda by: f"{_signed(100 * by)} points"),
    Quantity("fetched_bytes_per_step", "fetched per step", _megabytes, 0.01),
    Quantity("written_back_bytes_per_step", "written back per step", _megabytes, 0.01),
)
SPEED, BASELINE_SPEED = "relative speed", "it/s of the baseline"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is said of two runs.

    Attributes:
        cells: The outer join of the runs, see `join`, and for cells of both RUN_B's relative speed over RUN_A's
            (`ratio`, `low`, `high`), whether the interval excludes 1 (`beyond_noise`), and why the ratio decides
            nothing (`unjudged`; None: it does).
        changes: A line per change in the order of their listing: `label`, `quantity`, `a`, `b` in SI units, and `text`.
        differences: Differences of the runs' environments: name, RUN_A's value, RUN_B's.
    """

    before: RunRecords
    after: RunRecords
    cells: pd.DataFrame
    changes: pd.DataFrame
    differences: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]

    @property
    def both(self) -> pd.DataFrame:
        """The cells that both runs have."""
        return self.cells[self.cells["in_run"] == "both"]

    @property
    def unjudged(self) -> dict[Unjudged, list[str]]:
        """Labels of the cells whose speed decides nothing, by reason."""
        pairs = self.both[["unjudged", "label"]].itertuples(index=False, name=None)
        found: dict[Unjudged, list[str]] = {reason: [] for reason in Unjudged}
        for reason, label in pairs:
            if isinstance(reason, Unjudged):
                found[reason].append(label)
        return {reason: labels for reason, labels in found.items() if labels}

    def to_json(self, gate: dict[str, object] | None) -> str:
        """The whole comparison, with what the gate found, as one JSON object in SI units; what is missing is null."""
        runs = {
            name: {
                "path": str(run.path),
                "records": sum(len(row.records) for row in run.rows),
                "problems": [{"path": str(problem.path), "reason": problem.reason} for problem in run.problems],
            }
            for name, run in (("run_a", self.before), ("run_b", self.after))
        }
        reasons = [one.reason if isinstance(one, Unjudged) else None for one in self.cells["unjudged"]]
        cells = self.cells.drop(columns=["row_a", "row_b"]).assign(unjudged=reasons)
        content = runs | {
            "environment": [{"name": name, "a": old, "b": new} for name, old, new in self.differences],
            "warnings": self.warnings,
            "cells": json.loads(cells.to_json(orient="records", double_precision=15)),
            "changes": json.loads(self.changes.to_json(orient="records", double_precision=15)),
            "gate": gate,
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def compare(before: RunRecords, after: RunRecords) -> Comparison:
    """Compare RUN_A with RUN_B.

    Raises:
        NoComparison: they are the same files, have no cell in common, or one is of a virtual device.
    """
    if mixes_virtual([*before.files.values(), *after.files.values()]):
        raise NoComparison(
            "RUN_A and RUN_B: some records are of a virtual device and others were measured, so their numbers are not "
            "set side by side; give two runs of one kind"
        )
    cells = join(before, after)
    speeds = [
        compare_speeds(old, new) if in_run == "both" else (None, None)
        for old, new, in_run in cells[["row_a", "row_b", "in_run"]].to_numpy()
    ]
    for column, name in (("ratio", "value"), ("low", "low"), ("high", "high")):
        cells[column] = pd.Series([getattr(estimate, name, None) for estimate, _ in speeds], dtype=float)
    cells["beyond_noise"] = (cells["high"] < 1 - _ROUNDING) | (cells["low"] > 1 + _ROUNDING)
    cells["unjudged"] = pd.Series([reason for _, reason in speeds], dtype=object)
    pairs = cells[cells["in_run"] == "both"]
    found = [(cell["label"], *change) for cell in pairs.to_dict("records") for change in _changes(cell)]
    changes = pd.DataFrame(found, columns=["label", "quantity", "a", "b", "text", "order"], dtype=object)
    changes = changes.sort_values("order", kind="stable", ignore_index=True)
    return Comparison(
        before=before,
        after=after,
        cells=cells,
        changes=changes.drop(columns="order"),
        differences=tuple(_differences(pairs["row_a"], pairs["row_b"])),
        warnings=tuple(_warnings(before, after, pairs)),
    )


def compare_speeds(before: Row, after: Row) -> tuple[Estimate | None, Unjudged | None]:
    """Compare a cell's ratios to the baseline: what slowed both down, machine or code, cancels.

    The builds of two runs have nothing to do with each other: Welch's interval on the logarithms.

    Returns:
        RUN_B's ratio over RUN_A's, if there is something to compare, and why it decides nothing, unless it does.
    """
    pair = (before, after)
    ours, theirs = ({(record.key, record.started_at) for record in row.records} for row in pair)
    if any(row.steps_per_s is None for row in pair):
        return None, Unjudged.NOT_MEASURED
    if ours & theirs:
        return None, Unjudged.SAME_RECORDS
    if is_baseline(before.system):
        return None, Unjudged.IS_THE_BASELINE
    if any(row.ratio is None for row in pair):
        return None, Unjudged.NO_BASELINE
    ratio = unpaired_ratio(*(samples_of(log_speeds(row.records)) for row in (after, before)))
    if ratio.low is None:
        return ratio, Unjudged.NO_INTERVAL
    return ratio, Unjudged.ANOTHER_MACHINE if place(before) != place(after) else None


def speed_text(cell: dict[str, Any]) -> str:
    """Relative speeds of a cell in both runs, their ratio and its interval."""
    low, high = cell["low"], cell["high"]
    interval = "no interval" if math.isnan(low) else f"{_ratio(low)} to {_ratio(high)}"
    return f"{amount(cell['vs_baseline_a'])} -> {amount(cell['vs_baseline_b'])}: x {_ratio(cell['ratio'])} ({interval})"


def _ratio(value: float) -> str:
    """Three decimals, or as many as tell it from 0 and from 1."""
    if not 0.1 <= value < 10:
        return amount(value)
    return next((text for text in (f"{value:.{n}f}" for n in (3, 4, 5)) if float(text) != 1 or value == 1), "1.00000")


def _changes(cell: dict[str, Any]) -> Iterator[tuple[str, object, object, str, int]]:
    """Quantities of a cell that changed by more than their tolerance: name, values, text, and what sorts them."""
    before, after = cell["row_a"], cell["row_b"]
    if cell["beyond_noise"]:
        yield SPEED, before.ratio.value, after.ratio.value, speed_text(cell), int(cell["ratio"] > 1)
    if before.status is not after.status:
        where = f" in phase {after.phase}" if after.phase else ""
        text = f"{before.status} -> {after.status}{where}{f': {one_line(after.reason)}' if after.reason else ''}"
        yield "status", before.status.value, after.status.value, text, 2
    old, new = before.verified, after.verified
    # how far apart within a tolerance may differ from one run to the next
    if old is not None and new is not None and old.split()[0] != new.split()[0]:
        yield "verified", old, new, f"{old} -> {new}{'' if after.passed else ', verification lost'}", 3
    if before.measured_rounds and after.measured_rounds:  # without a measurement, the status says so
        for order, quantity in enumerate(QUANTITIES, start=4):
            values = _values(quantity.field, before, after)
            change = _difference(quantity, *values)
            if change is not None:
                yield quantity.title, *values, f"{' -> '.join(map(quantity.show, values))}{change}", order
    if cell["unjudged"] is Unjudged.IS_THE_BASELINE and before.steps_per_s and after.steps_per_s:
        shift = 100 * (after.steps_per_s / before.steps_per_s - 1)
        text = f"{amount(before.steps_per_s)} -> {amount(after.steps_per_s)} ({shift:+.0f} %; no interval)"
        yield BASELINE_SPEED, before.steps_per_s, after.steps_per_s, text, 99


def _values(field: str, before: Row, after: Row) -> tuple[float | None, float | None]:
    """A quantity in both runs; quality over the rounds that both measured, because rounds differ in seed."""
    if field not in ("auroc", "accuracy"):
        return before.line().get(field), after.line().get(field)
    old, new = (
        {run.cell.round: getattr(run.measurement.quality, field) for run in row.records if run.measurement is not None}
        for row in (before, after)
    )
    shared = old.keys() & new.keys()
    return (fmean(old[one] for one in shared), fmean(new[one] for one in shared)) if shared else (None, None)


def _difference(quantity: Quantity, old: float | None, new: float | None) -> str | None:
    """Words for the size of a change; None within the tolerance."""
    if old is None or new is None:
        return None if old is new else ""
    by = new - old
    if abs(by) <= quantity.tolerance * (1.0 if quantity.absolute else abs(old)):
        return None
    if quantity.absolute is not None:
        return f" ({quantity.absolute(by)})"
    return f" ({_signed(100 * by / old)} %)" if old else ""


def _differences(before: Iterable[Row], after: Iterable[Row]) -> Iterator[tuple[str, str, str]]:
    """Differences between two runs' environments; several values where a run mixes them, the latest last."""
    old, new = (_environment(record for row in rows for record in row.records) for rows in (before, after))
    for name in dict.fromkeys([*old, *new]):
        values = [", ".join(side.get(name, ["none"])) for side in (old, new)]
        if values[0] != values[1]:
            yield name, values[0], values[1]


def _environment(records: Iterable[Record]) -> dict[str, dict[str, None]]:
    """Machine, code, threads, packages and how turns were taken: values by name, each once, in order of time."""
    found: dict[str, dict[str, None]] = {}
    for record in sorted(records, key=lambda record: record.order):
        for field, value in record.environment.model_dump(exclude={"machine", "packages"}, exclude_none=True).items():
            if field == "system_code":
                name, shown = f"code of {base_name(record.cell.system)}", str(value)
            elif field.endswith("_bytes"):
                name, shown = field.removesuffix("_bytes").replace("_", " "), f"{amount(value / 1e9)} GB"
            else:
                name, shown = field, str(value)
            found.setdefault(name, {})[shown] = None
        for name, version in sorted(record.environment.packages.items()):
            found.setdefault(name, {})[version] = None
        if record.turns is not None:
            found.setdefault("turns taken", {})[record.turns.way] = None
    return found


def _warnings(before: RunRecords, after: RunRecords, pairs: pd.DataFrame) -> Iterator[str]:
    """Warnings to read before the numbers."""
    if any(place(old) != place(new) for old, new in zip(pairs["row_a"], pairs["row_b"], strict=True)):
        yield "The runs are of two machines, or have other threads: their speed ratios are of machines, not of code."
    for run, rows in ((before, pairs["row_a"]), (after, pairs["row_b"])):
        disturbed = [record for row in rows for record in row.records if record.disturbed]
        if disturbed:
            yield (
                f"{run.name} has {len(disturbed)} record{'s' if len(disturbed) > 1 else ''} of a disturbed machine, "
                f"e.g. {disturbed[0].cell.label}: {'; '.join(disturbed[0].disturbed)}; measure them again with --fresh."
            )
