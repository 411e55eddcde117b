"""Rows on a drive: what systems give within a host budget, in the whole DLRM step and in the embedding step alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.records.measured import DriveSpeed
from suite.records.record import Record
from suite.records.status import Status
from suite.tables.rows import Row, failure, merged_rows, noise_floor, trusted
from suite.tables.statistics import Estimate, relative_speed
from workloads.schema import SCHEMAS

RIVALS: Final = ("mapped_table", "rocksdb_table")
"""What others would do with rows on a drive; every system beside the baseline is compared with them."""
FLOAT_BYTES: Final = 4
_AS_IN_ROW = ("knew", "samples_per_s", "ratio", "ratio_low", "ratio_high", "builds", "auroc", "exact", "verified")


class Step(StrEnum):
    """What was timed."""

    WHOLE = "the whole DLRM step"
    EMBEDDING = "the embedding step alone"


@dataclass(frozen=True, kw_only=True)
class OnDrive:
    """A system within a host budget, in one kind of step. None: does not exist or is not known, never 0.

    Attributes:
        ratio: To all rows in RAM.
        over_mapped_table, ...: How many times as fast as that rival, with a 95 % interval over blocks of turns.
        compared: With rivals: `in turns`, or `through full_ram`.
        rows_read, read_bytes, written_bytes: Per sample, in the timed turns.
        blocks_of_drive: Bytes read over the size of the drive's measured reads, per second, relative to the reads per
            second that it gives at depth 32; `rows_of_drive`: rows asked of the file, relative to the same.
        over_blocks, over_packed: Bytes read over the least possible: a block for every missing row, or its own bytes.
        held_bytes: Most that was in use beyond what training took without rows; the largest over rounds.
        why: How it ended that is not ok, and why.
    """

    step: str
    host_budget_bytes: int
    system: str
    knew: str | None = None
    samples_per_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    over_mapped_table: float | None = None
    over_mapped_table_low: float | None = None
    over_mapped_table_high: float | None = None
    over_rocksdb_table: float | None = None
    over_rocksdb_table_low: float | None = None
    over_rocksdb_table_high: float | None = None
    compared: str | None = None
    noise: float | None = None
    builds: int = 0
    auroc: float | None = None
    rows_read: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    blocks_of_drive: float | None = None
    rows_of_drive: float | None = None
    over_blocks: float | None = None
    over_packed: float | None = None
    held_bytes: int | None = None
    exact: bool = True
    verified: str | None = None
    status: str
    why: str = ""

    @property
    def speed(self) -> Estimate | None:
        """Relative to all rows in RAM; None: it is the baseline, or was not timed beside it."""
        return None if is_baseline(self.system) else self._estimate("ratio")

    @property
    def sound(self) -> bool:
        """Whether it was timed, ended ok, is verified and exact; the reference is a yardstick."""
        ended_well = self.status == Status.OK and self.verified not in ("no", None)
        timed = self.samples_per_s is not None and base_name(self.system) != REFERENCE
        return timed and ended_well and self.exact

    def over(self, rival: str) -> Estimate | None:
        """How many times as fast as a rival."""
        return self._estimate(f"over_{rival}")

    def _estimate(self, name: str) -> Estimate | None:
        value = getattr(self, name)
        low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
        return None if value is None else Estimate(value=value, low=low, high=high)


def rows_on_drive(groups: Sequence[Group], step: Step) -> tuple[OnDrive, ...]:
    """A row per budget and system, in the order of the groups.

    Of the embedding step none where nobody beside the baseline took such turns.
    """
    found = tuple(row for group in groups for row in _rows(group, step))
    timed = any(row.samples_per_s is not None and not is_baseline(row.system) for row in found)
    return found if timed or step is Step.WHOLE else ()


def table_rows(group: Group) -> int | None:
    """Rows of all tables: what the baseline holds, else about as many as the dataset has; None: not known."""
    for system, runs in group.rounds_by_system.items():
        for measurement in trusted(runs) if is_baseline(system) else ():
            sizes = [size for key, size in measurement.memory.anatomy_bytes.items() if key.endswith("/rows")]
            if sum(sizes):
                return sum(sizes) // (FLOAT_BYTES * group.cell.embedding_dim)
    schema = SCHEMAS.get(group.cell.workload.partition("@")[0])
    if schema is None or group.cell.data == "real":
        return None
    return min(schema.table_rows, group.cell.max_rows or schema.table_rows)


def drives_of(runs: Sequence[Record]) -> list[DriveSpeed]:
    """The drive as each cell found it."""
    return [run.measurement.drive for run in runs if run.measurement is not None and run.measurement.drive is not None]


def _rows(group: Group, step: Step) -> Iterator[OnDrive]:
    if step is Step.EMBEDDING:
        group = Group(group.key, tuple(map(_embedding_alone, group.records)))
    rows = [row for row in merged_rows(group) if not row.again]
    noise = noise_floor(merged_rows(group))
    rivals = {name: found for name in RIVALS if (found := _fastest(rows, name)) is not None}
    for row in rows:
        yield OnDrive(
            step=step.value,
            host_budget_bytes=group.cell.host_budget_bytes or 0,
            system=row.system,
            **_beside(group, row, rivals),
            noise=noise,
            **_reading(group, row),
            held_bytes=_held(group.rounds_by_system[row.system]),
            **{name: getattr(row, name) for name in _AS_IN_ROW},
            status=row.status.value,
            why="" if row.status is Status.OK else failure(row),
        )


def _embedding_alone(record: Record) -> Record:
    """A record whose turns are those of the embedding step."""
    turns = record.turns
    if turns is None or turns.embedding_s is None:
        return record.model_copy(update={"turns": None})
    alone = {
        "system_s": turns.embedding_s,
        "baseline_s": turns.baseline_embedding_s,
        "drive": turns.embedding_drive,
    }
    return record.model_copy(update={"turns": turns.model_copy(update=alone)})


def _fastest(rows: Sequence[Row], name: str) -> Row | None:
    named = [row for row in rows if base_name(row.system) == name and row.verified != "no"]
    timed = [row for row in named if row.samples_per_s is not None]
    return max(timed, key=lambda row: row.samples_per_s or 0.0, default=None)


def _beside(group: Group, row: Row, rivals: dict[str, Row]) -> dict[str, Any]:
    """Speed relative to the rivals; nothing of one that was not timed, or to itself."""
    found: dict[str, Any] = {}
    if row.samples_per_s is None:
        return found
    runs = group.rounds_by_system[row.system]
    for name, rival in rivals.items():
        others = group.rounds_by_system[rival.system]
        ratio = None if rival is row else relative_speed(runs, others)
        if ratio is not None:
            found |= {f"over_{name}": ratio.value, f"over_{name}_low": ratio.low, f"over_{name}_high": ratio.high}
            apart = _contests(runs).isdisjoint(_contests(others))
            found["compared"] = "through full_ram" if apart else found.get("compared", "in turns")
    return found


def _contests(runs: Sequence[Record]) -> set[str]:
    return {run.turns.contest for run in runs if run.turns is not None}


def _reading(group: Group, row: Row) -> dict[str, Any]:
    """What was read and written in the turns, per sample and relative to the drive and to the least possible."""
    runs = group.rounds_by_system[row.system]
    if not trusted(runs):
        return {}
    rows, read, written = (_per_sample(runs, name) for name in ("rows_read", "read_bytes", "written_bytes"))
    misses = _misses(runs) if rows is None else rows
    speed = None if row.total_steps_per_s is None else row.total_steps_per_s * group.cell.batch_size
    drives = drives_of(group.records)  # of all systems: it is one drive, and a single look may meet a busy machine
    block = drives[0].read_bytes if drives else None
    depth_32 = statistics.median(one.reads_per_s_depth_32 for one in drives) if drives else None
    return {
        "rows_read": rows,
        "read_bytes": read,
        "written_bytes": written,
        "blocks_of_drive": _over(_times(_over(read, block), speed), depth_32),
        "rows_of_drive": _over(_times(rows, speed), depth_32),
        "over_blocks": _over(read, _times(misses, block)),
        "over_packed": _over(read, _times(misses, FLOAT_BYTES * group.cell.embedding_dim)),
    }


def _per_sample(runs: Sequence[Record], name: str) -> float | None:
    """Of all rounds' turns together; None where a round does not know."""
    known = [
        (getattr(turns.drive, name), turns.drive.steps * run.cell.batch_size)
        for run in runs
        if (turns := run.turns) is not None and turns.drive is not None
    ]
    if not known or any(number is None for number, _ in known):
        return None
    return _over(sum(number for number, _ in known), sum(samples for _, samples in known))


def _misses(runs: Sequence[Record]) -> float | None:
    """Distinct missing rows per sample, in the steps in which traffic was counted."""
    for run in runs:
        traffic = None if run.measurement is None else run.measurement.traffic
        if traffic is not None and traffic.unique_misses is not None:
            return _over(traffic.unique_misses, traffic.steps * run.cell.batch_size)
    return None


def _held(runs: Sequence[Record]) -> int | None:
    held = [one.held for one in trusted(runs) if one.held is not None]
    peaks = [one.peak_bytes - one.without_rows_bytes for one in held if one.peak_bytes is not None]
    return max(peaks, default=None)


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _times(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other
