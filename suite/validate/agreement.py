"""What no schema can say of a record: whether its parts agree with each other, and with the name of its file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from suite.records.record import Cell, Measurement, Optimum, Quality, Record, record_key
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.validate.finding import Finding, shown
from systems.registry import CONTROLS

_ROUNDING: Final = 1e-9
"""Relative: another order of summation or a decimal place less does not make a rate wrong."""
_PATH = re.compile(r"""(?:^|(?<=[\s"'(=<]))/[A-Za-z_][^\s"'()<>,;:]*""")
"""An absolute path in a text; the `/` of `device/rows` and of an address do not begin one."""


def disagreements(record: Record, path: Path) -> list[Finding]:
    """What in a record, or in the name of its file, contradicts the rest of it."""
    try:
        return [*_identity(record, path), *_outcome(record), *_figures(record)]
    except OverflowError:  # a Python integer may be larger than any float
        return [Finding("", "holds an integer that is too large to compute with; measure it again")]


def warnings(content: dict[str, Any]) -> list[Finding]:
    """What a valid record had better not hold when it is published: paths of a machine, numbers that are no JSON."""
    return list(_unfit_to_publish(content, ""))


def _unfit_to_publish(value: object, where: str) -> Iterator[Finding]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _unfit_to_publish(inner, f"{where}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unfit_to_publish(inner, f"{where}[{index}]")
    elif isinstance(value, str) and (named := _PATH.search(value)):
        yield Finding(where, f"names a path of its machine, {shown(named[0])}")
    elif isinstance(value, float) and not math.isfinite(value):
        text = json.dumps(value)
        yield Finding(where, f'{text} without quotes is no JSON; write "{text}"')


def _identity(record: Record, path: Path) -> Iterator[Finding]:
    key = record_key(record.cell, record.environment)
    if key != record.key:
        yield Finding(
            "key",
            f"found {shown(record.key)}, but cell, code, packages and machine give {shown(key)}: "
            "somebody edited them; restore the file or measure it again",
        )
    name = RecordStore(path.parent.parent).path(record).name
    if name != path.name:
        yield Finding("", f"is not named as the store names it; rename it to {name}")
    try:
        zoned = datetime.fromisoformat(record.started_at).tzinfo is not None
    except ValueError:
        zoned = False
    if not zoned:
        yield Finding("started_at", f"found {shown(record.started_at)}, expected a time in ISO 8601 with its zone")


def _outcome(record: Record) -> Iterator[Finding]:
    ok, verification = record.status is Status.OK, record.verification
    if ok and record.measurement is None:
        yield Finding("measurement", "is missing though the status is ok")
    if not ok and record.measurement is not None:
        yield Finding("measurement", f"is there though the status is {record.status}: only ok has one")
    control = record.cell.system.partition("[")[0] in CONTROLS
    if ok and verification is None and not control:
        yield Finding("verification", "is missing though the status is ok")
    if ok and verification is not None and not verification.passed:
        yield Finding("verification", "did not pass though the status is ok: it has to be wrong_answer")
    if record.status is Status.WRONG_ANSWER and (verification is None or verification.passed):
        yield Finding("verification", "shows no failed check though the status is wrong_answer")


def _figures(record: Record) -> Iterator[Finding]:
    if record.measurement is not None:
        yield from _timing(record, record.measurement)
        yield from _counts(record, record.measurement)
        yield from _shares(record.measurement.quality)
    if record.optimum is not None:
        yield from _horizon(record.optimum, record.cell)


def _timing(record: Record, measurement: Measurement) -> Iterator[Finding]:
    cell, timing = record.cell, measurement.timing
    here = "measurement.timing"
    if len(timing.window_s) != cell.windows:
        yield Finding(f"{here}.window_s", f"found {len(timing.window_s)} windows, cell.windows says {cell.windows}")
    if timing.window_steps != cell.window_steps:
        yield Finding(
            f"{here}.window_steps", f"found {timing.window_steps}, cell.window_steps says {cell.window_steps}"
        )
    impossible = [index for index, seconds in enumerate(timing.window_s) if not 0 < seconds < math.inf]
    for index in impossible:
        yield Finding(f"{here}.window_s[{index}]", f"found {timing.window_s[index]}, expected a duration above 0")
    if timing.window_s and not impossible:
        speed = median(timing.window_steps / seconds for seconds in timing.window_s)
        if not math.isclose(timing.steps_per_s, speed, rel_tol=_ROUNDING):
            yield Finding(f"{here}.steps_per_s", f"found {timing.steps_per_s}, the median of the windows is {speed}")
    samples_per_s = timing.steps_per_s * cell.batch_size
    if not math.isclose(timing.samples_per_s, samples_per_s, rel_tol=_ROUNDING):
        yield Finding(
            f"{here}.samples_per_s",
            f"found {timing.samples_per_s}, steps_per_s and cell.batch_size give {samples_per_s}",
        )


def _counts(record: Record, measurement: Measurement) -> Iterator[Finding]:
    traffic = measurement.traffic
    here = "measurement.traffic"
    if not 0 <= traffic.steps <= record.cell.counted_steps:
        yield Finding(f"{here}.steps", f"found {traffic.steps}, cell.counted_steps says {record.cell.counted_steps}")
    counted = {name: value for name, value in traffic if isinstance(value, int)}
    for name, value in counted.items():
        if value < 0:
            yield Finding(f"{here}.{name}", f"found {value}, a count is at least 0")
    for fewer, more in (("unique_misses", "unique_ids"), ("unique_ids", "lookups"), ("lookup_misses", "lookups")):
        if fewer in counted and more in counted and counted[fewer] > counted[more]:
            yield Finding(f"{here}.{fewer}", f"found {counted[fewer]}, more than the {counted[more]} of {more}")
    if traffic.per_table is None:
        return
    for table, (unique, misses) in traffic.per_table.items():
        if not 0 <= misses <= unique:
            yield Finding(f"{here}.per_table.{table}", f"found {misses} misses of {unique} unique ids")
    for name, column in (("unique_ids", 0), ("unique_misses", 1)):
        total = sum(pair[column] for pair in traffic.per_table.values())
        if name in counted and counted[name] != total:
            yield Finding(f"{here}.{name}", f"found {counted[name]}, the tables of per_table add up to {total}")


def _shares(quality: Quality) -> Iterator[Finding]:
    """What lies between 0 and 1. A hit rate of counters follows from counts, which are checked above."""
    for name in ("auroc", "accuracy", "best_auroc"):
        value = getattr(quality, name)
        if value is not None and not 0 <= value <= 1:  # NaN compares false with everything
            yield Finding(f"measurement.quality.{name}", f"found {value}, expected 0 to 1")


def _horizon(optimum: Optimum, cell: Cell) -> Iterator[Finding]:
    expected = (cell.steps - cell.counted_steps, cell.counted_steps)
    for name, value in zip(("first_step", "steps"), expected, strict=True):
        if getattr(optimum, name) != value:
            yield Finding(f"optimum.{name}", f"found {getattr(optimum, name)}, the counted steps of cell give {value}")
