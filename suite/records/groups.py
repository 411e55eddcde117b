"""Groups of records that may be compared with each other, and the rows that the paper published."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Self

from suite.records.environment import Environment
from suite.records.measured import Model
from suite.records.record import Cell, Record
from workloads.schema import SCHEMAS

BASELINE = "full_gpu"
IN_RAM = "full_ram"
"""The baseline's name beside rows on a drive."""
REFERENCE = "reference"


@dataclass(frozen=True, kw_only=True, order=True)
class GroupKey:
    """Records stand in one table if they share this key; keys are in the order of tables.

    Attributes:
        size: Cache size, or memory beside a drive: bytes, else a share of all rows; `setting` implies it.
        threads: CPU threads that torch used: they change the speed of everything on the host.
    """

    workload_order: tuple[int, str]
    device: str
    data: str
    size: float
    setting: str
    machine: str
    threads: int

    @classmethod
    def of(cls, record: Record) -> Self:
        """The key of the group that a record belongs to."""
        cell, environment = record.cell, record.environment
        known, dataset = list(SCHEMAS), cell.workload.partition("@")[0]
        order = known.index(dataset) if dataset in known else len(known)
        return cls(
            workload_order=(order, cell.workload),
            device=device_title(cell, environment),
            data=cell.data,
            size=cell.host_budget_bytes or cell.device_budget_bytes or cell.cache_ratio or 0.0,
            setting=cell.setting,
            machine=environment.machine,
            threads=environment.threads,
        )


@dataclass(frozen=True)
class RecordGroup:
    """Records of one comparison: same machine, device, data and setting; one record per system and round."""

    key: GroupKey
    records: tuple[Record, ...]

    @property
    def cell(self) -> Cell:
        """A cell of the group; all of them share everything but the system and the round."""
        return self.records[0].cell

    @property
    def environment(self) -> Environment:
        """The environment of the group's first record; versions may differ between records."""
        return self.records[0].environment

    @property
    def on_cpu(self) -> bool:
        """Whether lookups were computed on a CPU."""
        return self.cell.device == "cpu"

    @property
    def on_virtual_device(self) -> bool:
        """Whether they were computed on a virtual device: see `Record.on_virtual_device`."""
        return self.records[0].on_virtual_device

    @property
    def title(self) -> str:
        """The dataset as people call it, with its track; data of one's own by their name."""
        dataset, at, track = self.cell.workload.partition("@")
        schema = SCHEMAS.get(dataset)
        return f"{schema.title if schema else dataset}{' ' + at if at else ''}{track}"

    @cached_property
    def rounds_by_system(self) -> dict[str, tuple[Record, ...]]:
        """Records by system in order of rounds: reference and baseline first, then by name, so no order is implied."""
        found: defaultdict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            found[record.cell.system].append(record)
        return {
            name: tuple(sorted(found[name], key=lambda record: record.cell.round))
            for name in sorted(found, key=lambda name: (*precedence(name), name))
        }


def group_records(records: Iterable[Record]) -> list[RecordGroup]:
    """Sort records into groups that may each be one table, in order of workload, then device, data and setting.

    Where a system ran the same round more than once (after a change of code, say), the latest run counts.
    """
    newest: dict[GroupKey, dict[tuple[str, int], Record]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.order):
        newest[GroupKey.of(record)][record.cell.system, record.cell.round] = record
    return [
        RecordGroup(key, tuple(record for _, record in sorted(newest[key].items(), key=lambda item: item[0])))
        for key in sorted(newest)
    ]


def mixes_virtual(records: Iterable[Record]) -> bool:
    """Whether some records are of a virtual device, and others were measured: nothing sets them side by side."""
    return len({record.on_virtual_device for record in records}) > 1


def device_title(cell: Cell, environment: Environment) -> str:
    """Name of the device that computed lookups: the GPU model, or the CPU model with its cores."""
    if cell.device == "cuda":
        return environment.gpu or "CUDA device of unknown model"
    return f"{environment.cpu}, {environment.cores} cores"


def base_name(system: str) -> str:
    """A system's name without its variant: `cache` of `cache[policy=lfu]`."""
    return system.partition("[")[0]


def is_baseline(system: str) -> bool:
    """Whether a system keeps everything on the device, so that others are measured against it."""
    return base_name(system) in (BASELINE, IN_RAM)


def precedence(system: str) -> tuple[bool, bool]:
    """Sort key that puts `reference`, then the baseline, first."""
    return base_name(system) != REFERENCE, not is_baseline(system)


NOTE = (
    "Published memory is printed as in its source, which says GB and means GiB: the 16.13 GB of torchrec on "
    "Criteo Kaggle is the whole table, 16.10 GiB. torchrec's GPU memory equals the whole table on Criteo Kaggle and "
    "Avazu, so these rows, called UVM by the source, ran mostly or entirely out of GPU memory."
)
"""Remark below published rows. Ours, not the source's."""


class PublishedRow(Model):
    """One row of the paper's table, as printed there but for `epoch_s`, there in minutes too; of memory see `NOTE`."""

    workload: str
    system: str
    auroc: float
    accuracy: float
    steps_per_s: float
    epoch_s: float
    gpu_allocated_gb: float
    gpu_reserved_gb: float
    cpu_gb: float
    cache_ratio: float
    batch_size: int
    gpu: str
    cpu: str
    memory: str
    source: str


@cache
def published_rows(workload: str) -> tuple[PublishedRow, ...]:
    """The published rows of a workload, in the source's order; none for a workload that the paper does not have."""
    rows = csv.DictReader(Path(__file__).with_name("published.csv").read_text(encoding="utf-8").splitlines())
    return tuple(PublishedRow.model_validate(row) for row in rows if row["workload"] == workload)
