"""Fabricated records of rows on a drive."""

from math import exp
from typing import Any

from suite.records.groups import is_baseline
from suite.records.measured import CgroupLimit, DriveSpeed, DriveTraffic
from suite.records.record import Record
from tests.unit.suite.fabricate import GB, record, turns

GIB, MIB = 1 << 30, 1 << 20
OURS = "freq_cache[look_ahead=4,tier=file]"
Speeds = tuple[float, float]
"""To the baseline's, in the whole step and in the embedding step alone."""
DRIVE = DriveSpeed(
    file_system="ext4",
    read_bytes=4096,
    reads_per_s_depth_1=16_000,
    reads_per_s_depth_32=64_000,
    measured_by="fio 3.36",
)


def full_ram(budget: int = GIB, **changes: Any) -> list[Record]:
    """All rows in RAM."""
    return on_drive("full_ram", 1.0, alone=1.0, budget=budget, offloads=False, prior_knowledge="nothing", **changes)


def contest(
    budget: int = GIB,
    *,
    ours: Speeds = (0.95, 0.5),
    mapped: Speeds = (0.2, 0.1),
    rocksdb: Speeds = (0.5, 0.2),
    **changes: Any,
) -> list[Record]:
    """Full RAM, our cache and both rivals, by their speed in the whole step and in the embedding step."""
    changes["budget"] = budget
    return [
        *full_ram(**changes),
        *on_drive(OURS, ours[0], alone=ours[1], rows_read=8, read_bytes=4096, written_bytes=1024, **changes),
        *on_drive("mapped_table", mapped[0], alone=mapped[1], read_bytes=40_960, **changes),
        *on_drive("rocksdb_table", rocksdb[0], alone=rocksdb[1], read_bytes=16_384, **changes),
    ]


def on_drive(
    system: str,
    ratio: float,
    *,
    budget: int = 1 << 30,
    alone: float | None = None,
    seeds: int = 3,
    rows_read: int | None = None,
    read_bytes: int = 0,
    written_bytes: int = 0,
    **changes: Any,
) -> list[Record]:
    """Rounds of a system, so many times as fast as `full_ram` in the whole step, and `alone` in the embedding step.

    There `full_ram` is twice as fast. It is not held to the budget, and reads nothing. Ratios of rounds lie 1 % apart;
    reads and writes are per sample, of both kinds of turns.
    """
    own = {"device": "cpu", "cache_ratio": None, "host_budget_bytes": budget, "batch_size": 1000, "builds": 1}
    baseline, on_disk = 10_000.0, not is_baseline(system)
    found = []
    for number in range(seeds):
        moved = exp(0.01 * (number - (seeds - 1) / 2)) if on_disk else 1.0
        plain = record(
            system,
            round=number,
            samples_per_s=baseline * ratio * moved,
            baseline=baseline,
            setting=own,
            anatomy={"disk/rows" if on_disk else "device/rows": 16 * GB},
            **changes,
        )
        if plain.turns is None or plain.measurement is None:
            found.append(plain)
            continue
        beside = turns(plain.cell, 2 * baseline * (alone or 1.0) * moved, baseline=2 * baseline)
        steps = plain.cell.turns * plain.cell.turn_steps
        samples = steps * plain.cell.batch_size
        traffic = DriveTraffic(
            steps=steps,
            read_bytes=samples * read_bytes,
            written_bytes=samples * written_bytes,
            rows_read=None if rows_read is None else samples * rows_read,
        )
        timed = {
            "drive": traffic if on_disk else None,
            "embedding_s": None if alone is None else beside.system_s,
            "baseline_embedding_s": None if alone is None else beside.baseline_s,
            "embedding_drive": traffic if on_disk and alone is not None else None,
        }
        measured = {"drive": DRIVE, "held": held(budget)} if on_disk else {}
        parts = {"turns": (plain.turns, timed), "measurement": (plain.measurement, measured)}
        found.append(plain.model_copy(update={name: old.model_copy(update=new) for name, (old, new) in parts.items()}))
    return found


def held(budget: int) -> CgroupLimit:
    """All but a hundredth of the budget in use, on top of 2 GB."""
    return CgroupLimit(
        how="memory control group, version 2",
        without_rows_bytes=2 * GB,
        limit_bytes=2 * GB + budget,
        peak_bytes=2 * GB + budget * 99 // 100,
    )
