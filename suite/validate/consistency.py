"""What no schema can say of a record: whether its parts agree with each other, and with the name of its file."""

import math
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from suite.records.groups import base_name
from suite.records.measured import Optimum, Quality, Traffic
from suite.records.record import Cell, Record, record_key
from suite.records.status import Status
from suite.records.store import RecordStore
from suite.records.turns import Turns
from suite.validate.schema import Finding, shown
from systems.registry import CONTROLS

_TURNS: Final = "turns"
"""The phase of a system that failed after its cell had measured all but its speed."""
_PATH = re.compile(r"""(?:^|(?<=[\s"'(=<]))/[A-Za-z_][^\s"'()<>,;:]*""")
"""An absolute path in a text; the `/` of `device/rows` and of an address do not begin one."""


def disagreements(record: Record, path: Path) -> list[Finding]:
    """What in a record, or in the name of its file, contradicts the rest of it."""
    return [*_identity(record, path), *_outcome(record), *_figures(record)]


def warnings(value: object, where: str = "") -> Iterator[Finding]:
    """What a valid record's content had better not hold when it is published: paths of a machine."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from warnings(inner, f"{where}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from warnings(inner, f"{where}[{index}]")
    elif isinstance(value, str) and (named := _PATH.search(value)):
        yield Finding(where, f"names a path of its machine, {shown(named[0])}")


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
    kept = ok or (record.phase == _TURNS and record.status is not Status.WRONG_ANSWER)
    if not kept and record.measurement is not None:
        yield Finding(
            "measurement",
            f"is there though the status is {record.status}: only ok has one, and what failed in its turns",
        )
    if not kept and record.turns is not None:
        yield Finding(
            "turns", f"is there though the status is {record.status}: only ok has times, and what failed in later turns"
        )
    if ok and verification is None and base_name(record.cell.system) not in CONTROLS:
        yield Finding("verification", "is missing though the status is ok")
    if ok and verification is not None and not verification.passed:
        yield Finding("verification", "did not pass though the status is ok: it has to be wrong_answer")
    if record.status is Status.WRONG_ANSWER and (verification is None or verification.passed):
        yield Finding("verification", "shows no failed check though the status is wrong_answer")


def _figures(record: Record) -> Iterator[Finding]:
    if record.measurement is not None:
        yield from _traffic(record.cell, record.measurement.traffic)
        yield from _quality(record.cell, record.measurement.quality)
    if record.turns is not None:
        yield from _turns(record.cell, record.turns)
    if record.optimum is not None:
        yield from _horizon(record.optimum, record.cell)
    if record.on_virtual_device:
        yield from _times(record)


def _times(record: Record) -> Iterator[Finding]:
    """What a record of a virtual device has of times: none of them means anything."""
    spared = record.untimed()
    for name in ("turns", "conditions", "disturbed"):
        if getattr(record, name) != getattr(spared, name):
            yield Finding(name, f"is there though {record.environment.gpu} has no speed: remove it")
    for name in ("timing", "traffic", "ranks"):
        found, left = (getattr(one.measurement, name, None) for one in (record, spared))
        if found != left:
            yield Finding(
                f"measurement.{name}", f"has times though {record.environment.gpu} has no speed: set them to null"
            )


def _turns(cell: Cell, turns: Turns) -> Iterator[Finding]:
    """As many as the cell says; where turns were made longer than it says, fewer."""
    counts = [len(build) for build in turns.system_s]
    if len(counts) != cell.builds:
        yield Finding("turns.system_s", f"found {len(counts)} builds, cell.builds says {cell.builds}")
    fewest = cell.turns if turns.steps == cell.turn_steps else 1
    for build, count in enumerate(counts):
        if not fewest <= count <= cell.turns:
            yield Finding(f"turns.system_s[{build}]", f"found {count} turns, cell.turns says {cell.turns}")
    if turns.steps < cell.turn_steps:
        yield Finding("turns.steps", f"found {turns.steps}, cell.turn_steps says {cell.turn_steps}")
    if (turns.baseline_s is None) != (turns.baseline is None):
        yield Finding("turns.baseline", f"found {turns.baseline!r}, which does not go with baseline_s")
    for names in (("system_s", "baseline_s"), ("embedding_s", "baseline_embedding_s")):
        system, beside = (getattr(turns, name) or () for name in names)
        if beside and [len(build) for build in beside] != [len(build) for build in system]:
            yield Finding(f"turns.{names[1]}", f"has other builds or turns than {names[0]}: both are of the same turns")
        for name, times in zip(names, (system, beside), strict=True):
            for build, seconds in enumerate(times):
                for turn, found in enumerate(seconds):
                    if not 0 < found < math.inf:
                        yield Finding(f"turns.{name}[{build}][{turn}]", f"found {found}, expected a duration above 0")


def _traffic(cell: Cell, traffic: Traffic | None) -> Iterator[Finding]:
    here = "measurement.traffic"
    if traffic is None:
        if cell.counts:
            yield Finding(here, "is missing though the first round counts it")
        return
    if not 0 <= traffic.steps <= cell.counted_steps:
        yield Finding(f"{here}.steps", f"found {traffic.steps}, cell.counted_steps says {cell.counted_steps}")
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


def _quality(cell: Cell, quality: Quality) -> Iterator[Finding]:
    """What lies between 0 and 1, and points that come one after another within training."""
    here = "measurement.quality"
    shares = {name: getattr(quality, name) for name in ("auroc", "accuracy", "best_auroc")}
    shares |= {f"points[{index}].auroc": point.auroc for index, point in enumerate(quality.points)}
    for name, value in shares.items():
        if value is not None and not 0 <= value <= 1:  # NaN compares false with everything
            yield Finding(f"{here}.{name}", f"found {value}, expected 0 to 1")
    samples = [0, *(point.samples for point in quality.points)]
    if any(late <= early for early, late in pairwise(samples)) or samples[-1] > cell.steps * cell.batch_size:
        yield Finding(f"{here}.points", f"found samples {samples[1:]}, expected them to grow to the cell's at most")


def _horizon(optimum: Optimum, cell: Cell) -> Iterator[Finding]:
    expected = (cell.steps - cell.counted_steps, cell.counted_steps)
    for name, value in zip(("first_step", "steps"), expected, strict=True):
        if getattr(optimum, name) != value:
            yield Finding(f"optimum.{name}", f"found {getattr(optimum, name)}, the counted steps of cell give {value}")
