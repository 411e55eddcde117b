"""Records and simulations that the tests of the report share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from suite.records.groups import group_records
from suite.records.record import Record, Verification
from suite.report.publish import Source
from suite.tables.sheet import Sheet, Table
from tests.unit.suite.fabricate import BASELINE, environment, record, rounds

MIB = 2**20


def source(records: Iterable[Record], **more: Any) -> Source:
    return Source(groups=tuple(group_records(records)), **more)


def with_memory(records: Iterable[Record], **memory: Any) -> list[Record]:
    """The records with other figures of memory."""
    changed = []
    for old in records:
        measured = old.measurement
        assert measured is not None
        measured = measured.model_copy(update={"memory": measured.memory.model_copy(update=memory)})
        changed.append(old.model_copy(update={"measurement": measured}))
    return changed


def sized(system: str, ratios: list[float], size: int, **changes: Any) -> list[Record]:
    """Rounds on a GPU, of so many times the baseline's speed, with so many device bytes."""
    speeds = [ratio * BASELINE for ratio in ratios]
    return with_memory(rounds(system, speeds, **changes), anatomy_bytes={"device/rows": size})


def baseline(ratios: list[float], *, size: int = 128 * MIB, **changes: Any) -> list[Record]:
    """The baseline, with ratios of its second copy to it."""
    return sized("full_gpu", ratios, size, offloads=False, **changes)


def unverified(records: Iterable[Record]) -> list[Record]:
    return [old.model_copy(update={"verification": Verification(checks=())}) for old in records]


def disk_run(system: str = "freq_cache[tier=file]", faster: float = 1.0) -> list[Record]:
    """RAM over disk on a CPU at four budgets, each filled to 3 parts in 4; more of it is faster."""
    found = []
    for budget in (2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB):
        setting = {"device": "cpu", "cache_ratio": None, "device_budget_bytes": budget}
        speeds = [faster * BASELINE * (0.5 + budget / MIB / 100) for _ in range(3)]
        cells = rounds(system, speeds, setting=setting, placement="file + RAM slots")
        anatomy = {"device/rows": budget // 2, "device/staging": budget // 4, "disk/rows": 40 * MIB}
        found += with_memory(cells, anatomy_bytes=anatomy)
    return found


def two_machines() -> list[Record]:
    """The same cell on two GPUs of one model in unlike machines, and on a third with another GPU."""
    return [
        record("a"),
        record("a", where=environment(machine="another")),
        record("a", where=environment(machine="a third", gpu="NVIDIA A100")),
    ]


def lines_of(block: Table) -> list[dict[str, str]]:
    """Cells of all tables of a block by the words of their column."""
    columns = [column for table in block.frames for column in table.columns]
    return [{column.words: column.cell(line) for column in columns} for line in block.lines]


def only_table(sheet: Sheet | None) -> Table:
    assert sheet is not None
    (block,) = sheet.tables
    return block
