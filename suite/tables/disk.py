"""Rows on a drive: what systems give within a host budget, in the whole DLRM step and in the embedding step alone."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from suite.records.groups import REFERENCE, Group, base_name, is_baseline
from suite.records.measured import DriveSpeed
from suite.records.record import Record
from suite.records.status import Status
from suite.tables.rows import Row, failure, merged_rows, trusted
from suite.tables.statistics import Estimate, met, relative_speed, spread_out
from workloads.schema import SCHEMAS

RIVALS: Final = ("mapped_table", "rocksdb_table")
"""What others would do with rows on a drive; every system beside the baseline is compared with them."""
FLOAT_BYTES: Final = 4


class Step(StrEnum):
    """What was timed."""

    WHOLE = "the whole DLRM step"
    EMBEDDING = "the embedding step alone"


@dataclass(frozen=True, kw_only=True)
class OnDrive:
    """A system within a host budget, in one kind of step.

    Attributes:
        row: Its speed is that of the step.
        over: How many times as fast as a rival, by its name, with a 95 % interval over blocks of turns.
        compared: With rivals: `in turns`, or `through full_ram`; None: with none.
        reading: What was read and written, see `_reading`; None: not known.
        held_bytes: Most that was in use beyond what training took without rows; the largest over rounds.
    """

    step: Step
    budget: int
    row: Row
    over: Mapping[str, Estimate]
    compared: str | None
    reading: Mapping[str, float | None]
    held_bytes: int | None

    @property
    def speed(self) -> Estimate | None:
        """Relative to all rows in RAM; None: it is the baseline, or was not timed beside it."""
        return None if is_baseline(self.row.system) else self.row.relative

    @property
    def sound(self) -> bool:
        """Whether it was timed, ended ok, is verified and exact; the reference is a yardstick."""
        return self.row.sound and self.row.samples_per_s is not None and base_name(self.row.system) != REFERENCE

    @property
    def numbers(self) -> dict[str, object]:
        """The same as raw numbers, by column."""
        row = self.row
        return {
            "step": self.step.value,
            **{name: getattr(row, name) for name in ("system", "knew", "samples_per_s")},
            **spread_out("ratio", row.relative),
            **{key: value for name in RIVALS for key, value in spread_out(f"over_{name}", self.over.get(name)).items()},
            "compared": self.compared,
            **{name: getattr(row, name) for name in ("noise", "builds", "auroc")},
            **self.reading,
            "held_bytes": self.held_bytes,
            **{name: getattr(row, name) for name in ("exact", "verified")},
            "status": row.status.value,
            "why": "" if row.status is Status.OK else failure(row),
        }


def rows_on_drive(groups: Sequence[Group], step: Step) -> tuple[OnDrive, ...]:
    """A row per budget and system, in the order of the groups.

    Of the embedding step none where nobody beside the baseline took such turns.
    """
    found = tuple(one for group in groups for one in _rows(group, step))
    timed = any(one.row.samples_per_s is not None and not is_baseline(one.row.system) for one in found)
    return found if timed or step is Step.WHOLE else ()


def table_rows(group: Group) -> int | None:
    """Rows of all tables: what the baseline holds, else about as many as the dataset has; None: not known."""
    for system, runs in group.rounds_by_system.items():
        for measurement in trusted(runs) if is_baseline(system) else ():
            anatomy = measurement.memory.anatomy_bytes
            if size := sum(size for key, size in anatomy.items() if key.endswith("/rows")):
                return size // (FLOAT_BYTES * group.cell.embedding_dim)
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
    rivals = {name: found for name in RIVALS if (found := _fastest(rows, name)) is not None}
    for row in rows:
        others = {name: rival.records for name, rival in rivals.items() if rival is not row and row.samples_per_s}
        ratios = {name: relative_speed(row.records, records) for name, records in others.items()}
        over = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        apart = not all(met(row.records, others[name]) for name in over)
        yield OnDrive(
            step=step,
            budget=group.cell.host_budget_bytes or 0,
            row=row,
            over=over,
            compared=("through full_ram" if apart else "in turns") if over else None,
            reading=_reading(group, row),
            held_bytes=_held(row),
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
    named = [row for row in rows if base_name(row.system) == name and row.verified != "no" and row.samples_per_s]
    return max(named, key=lambda row: row.samples_per_s or 0.0, default=None)


def _reading(group: Group, row: Row) -> dict[str, float | None]:
    """What was read and written in the turns.

    `rows_read`, `read_bytes` and `written_bytes` are per sample. `blocks_of_drive` are bytes read over the size of the
    drive's measured reads, per second, relative to the reads per second that it gives at depth 32; `rows_of_drive` are
    rows asked of the file, relative to the same. `over_blocks` and `over_packed` are bytes read over the least
    possible: a block for every missing row, or its own bytes.
    """
    runs = row.records if row.measured_rounds else ()
    rows, read, written = (_per_sample(runs, name) for name in ("rows_read", "read_bytes", "written_bytes"))
    misses = _misses(runs) if rows is None else rows
    drives = drives_of(group.records)  # of all systems: it is one drive, and a single look may meet a busy machine
    block = drives[0].read_bytes if drives else None
    per_s = None if row.total_steps_per_s is None else row.total_steps_per_s * group.cell.batch_size
    of_drive = _over(per_s, statistics.median(one.reads_per_s_depth_32 for one in drives) if drives else None)
    row_bytes = FLOAT_BYTES * group.cell.embedding_dim
    return {
        "rows_read": rows,
        "read_bytes": read,
        "written_bytes": written,
        "blocks_of_drive": _times(_over(read, block), of_drive),
        "rows_of_drive": _times(rows, of_drive),
        "over_blocks": _over(read, _times(misses, block)),
        "over_packed": _over(read, _times(misses, row_bytes)),
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


def _held(row: Row) -> int | None:
    held = [one.held for one in row.measurements if one.held is not None]
    return max((one.peak_bytes - one.without_rows_bytes for one in held if one.peak_bytes is not None), default=None)


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _times(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other
