"""Records and simulations that the tests of the report share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from suite.records.groups import group_records
from suite.records.record import Record, Verification
from suite.report.source import Source
from suite.simulate.results import Configuration, Least, Row, Simulation, Stream, Traffic
from suite.tables.sheet import Block, Sheet
from tests.unit.suite.fabricate import BASELINE, environment, record, rounds

MIB = 2**20


def source(records: Iterable[Record], *simulations: Simulation) -> Source:
    return Source(groups=tuple(group_records(records)), simulations=simulations)


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


def simulation(**changes: Any) -> Simulation:
    """A replay of two policies and a failure, with counts that are easy to divide."""
    traffic = {"batches": 100, "lookups": 10_000, "unique_ids": 4_000, "lookup_misses": None, "overflow_batches": 0}
    traffic |= {"details": {}, "rows_fetched": 0, "rows_written_back": 0}
    least = Least(policy="belady", slots=500, unique_misses=800, bytes_moved=409_600)
    values: dict[str, Any] = {
        "stream": Stream(
            name="criteo_kaggle",
            workload="criteo_kaggle",
            scale="full",
            batch_size=16384,
            seed=0,
            frequency_prefix=1.0,
            tables={"C1": 40_000, "C2": 10_000},
            rows=50_000,
            batches=2398,
        ),
        "configuration": Configuration(
            policies=("lru", "compulsory", "odd"),
            cache_ratios=(0.01,),
            warmup_batches=50,
            counted_batches=100,
            optimizer="sgd",
            embedding_dim=128,
        ),
        "environment": environment(gpu=False),
        "complete": True,
        "rows": (
            Row(
                policy="lru",
                cache_ratio=0.01,
                slots_asked=500,
                slots=500,
                status="ok",
                traffic=Traffic(unique_misses=1_000, bytes_fetched=512_000, bytes_written_back=102_400, **traffic),
                least=least,
            ),
            Row(
                policy="compulsory",
                cache_ratio=0.01,
                slots_asked=500,
                slots=50_000,
                status="ok",
                traffic=Traffic(unique_misses=0, bytes_fetched=0, bytes_written_back=0, **traffic),
            ),
            Row(
                policy="odd",
                cache_ratio=0.01,
                slots_asked=500,
                slots=0,
                status="cannot_replay",
                reason="needs 640 slots",
            ),
        ),
    }
    return Simulation(**(values | changes))


def lines_of(block: Block) -> list[dict[str, str]]:
    """Cells by the words of their column."""
    heads = [head.words for head in block.heads]
    return [dict(zip(heads, line.cells, strict=True)) for line in block.lines]


def only_block(sheet: Sheet | None) -> Block:
    assert sheet is not None
    (block,) = sheet.blocks
    return block
