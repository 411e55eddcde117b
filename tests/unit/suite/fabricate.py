"""Fabricated records: complete, deterministic, and with round numbers, so that tests can say what a table must show.

Speeds are given in samples per second, and told beside the baseline's, `BASELINE`: `record("torchrec_uvm",
samples_per_s=BASELINE / 2)` has turns whose ratio is exactly 0.5, and `noise=0.02` moves its builds by -2, 0 and +2 %.
"""

from __future__ import annotations

import random
from math import exp
from typing import Any

from suite.records.environment import Environment
from suite.records.groups import is_baseline
from suite.records.measured import BeladyBound, Memory, Quality, QualityPoint, Timing, Traffic, Turns
from suite.records.record import Cell, Check, Measurement, Record, Status, Verification, record_key

GB = 10**9
BATCH = 16_384
BASELINE = 100.0 * BATCH
"""Samples per second of the baseline: 100 it/s."""


def cell(system: str = "cache[policy=lfu]", **changes: Any) -> Cell:
    values: dict[str, Any] = {
        "workload": "criteo_kaggle",
        "data": "synthetic",
        "scale": "full",
        "device": "cuda",
        "optimizer": "rowwise_adagrad",
        "lr": 0.1,
        "eps": 1e-8,
        "batch_size": BATCH,
        "embedding_dim": 128,
        "bottom_mlp": (512, 256),
        "top_mlp": (512, 256, 1),
        "cache_ratio": 0.01,
        "train_steps": 220,
        "counted_steps": 10,
        "quality_points": 4,
        "evaluation_batches": 8,
        "builds": 3,
        "warmup_steps": 20,
        "turns": 4,
        "turn_steps": 20,
        "seed": 1,
    }
    return Cell(**{**values, "system": system, **changes})


def environment(*, gpu: bool = True, **changes: Any) -> Environment:
    values: dict[str, Any] = {
        "machine": "gpumachine" if gpu else "cpumachine",
        "cpu": "AMD EPYC 7543 32-Core Processor",
        "cores": 16,
        "memory_bytes": 128 * GB,
        "gpu": "NVIDIA H100 80GB HBM3" if gpu else None,
        "gpu_memory_bytes": 84 * GB if gpu else None,
        "driver": "570.10" if gpu else None,
        "cuda": "12.8" if gpu else None,
        "os": "Linux",
        "python": "3.11.7",
        "packages": {"torch": "2.13.0", "torchrec": "1.8.0"},
        "code": "c0de",
        "commit": "0123456789abcdef",
        "dirty": False,
        "threads": 16,
    }
    return Environment(**{**values, **changes})


def verification(*, difference: float = 0.0, tolerance: float = 0.0, passed: bool = True) -> Verification:
    return Verification(
        checks=(
            Check(name="losses", passed=True, max_difference=0.0, tolerance=0.0),
            Check(name="rows", passed=passed, max_difference=difference, tolerance=tolerance),
        )
    )


def measurement(
    cell: Cell,
    *,
    auroc: float = 0.7911,
    overflow_batches: int = 0,
    allocated_bytes: int = int(1.25 * GB),
    alone_steps_per_s: float | None = None,
    anatomy: dict[str, int] | None = None,
    **changes: Any,
) -> Measurement:
    """A cache's numbers; `changes` are fields of `Measurement`."""
    on_gpu = cell.device == "cuda"
    said = {"placement": "cached", "offloads": True, "prior_knowledge": "the past"} | changes
    return Measurement(
        **said,
        timing=Timing(
            data_s_per_step=0.01,
            batches_made="by the training process, before the clock",
            producers=0,
            training_threads=16,
            alone_steps_per_s=alone_steps_per_s,
        ),
        quality=Quality(
            auroc=auroc,
            accuracy=0.7825,
            samples=131072,
            best_auroc=0.8012,
            final_loss=0.45,
            points=tuple(QualityPoint(samples=131072 * part, loss=0.5, auroc=auroc) for part in (1, 2)),
        ),
        memory=Memory(
            device_allocated_bytes=allocated_bytes if on_gpu else None,
            device_reserved_bytes=2 * GB if on_gpu else None,
            device_used_bytes=3 * GB if on_gpu else None,
            host_peak_rss_bytes=int(18.5 * GB),
            host_baseline_rss_bytes=GB,
            anatomy_bytes={"device/rows": 172_000_000, "device/state": 1_350_000, "host/rows": 17 * GB}
            if anatomy is None
            else anatomy,
        ),
        traffic=Traffic(
            steps=min(10, cell.counted_steps),
            lookups=4_259_840,
            unique_ids=1_000_000,
            unique_misses=50_000,
            lookup_misses=60_000,
            bytes_fetched=25_800_000,
            bytes_written_back=20_640_000,
            overflow_batches=overflow_batches,
        )
        if cell.counts
        else None,
        epoch_samples=39_291_954,
    )


def turns(
    cell: Cell, samples_per_s: float, *, noise: float = 0.01, baseline: float | None = BASELINE, **changes: Any
) -> Turns:
    """Turns with an exact ratio to the baseline, in an order of builds that depends on the system's name alone.

    Args:
        cell: Builds, turns and steps of a turn are as it says.
        samples_per_s: Of the system; of the baseline itself, of its second copy.
        noise: Log ratios of the builds lie so far apart, evenly around the exact one.
        baseline: Its samples per second. None: the system was alone.
        changes: Other fields of `Turns`.
    """
    whole = cell.turn_steps * cell.batch_size
    order = sorted(range(cell.builds), key=lambda build: random.Random(f"{cell.system} {build}").random())
    # The machine is now slow, now fast, for all alike: ratios must not show it, nor paces.
    drift = [(1.25, 0.8)[turn % 2] for turn in range(cell.turns)]
    steady = [[whole / (baseline or samples_per_s) * factor for factor in drift] for _ in range(cell.builds)]
    moved = [
        [whole / (samples_per_s * exp(noise * (order[build] - (cell.builds - 1) / 2))) * factor for factor in drift]
        for build in range(cell.builds)
    ]
    itself = is_baseline(cell.system)
    values: dict[str, Any] = {
        "contest": f"{cell.setting}-{cell.round}{f'-{cell.system}' if baseline is None else ''}",
        "way": "alone" if baseline is None else "one process",
        "steps": cell.turn_steps,
        "system_s": steady if itself and baseline is not None else moved,
        "baseline": None if baseline is None else "full_gpu" if cell.host_budget_bytes is None else "full_ram",
        "baseline_s": None if baseline is None else moved if itself else steady,
    }
    if "system_s" in changes and baseline is not None:
        values["baseline_s"] = changes["system_s"]  # as many turns
    return Turns(**{**values, **changes})


def optimum() -> BeladyBound:
    return BeladyBound(
        slots=337_625, bypasses=False, first_step=220, steps=10, unique_misses=40_000, bytes_moved=37_152_000
    )


def record(
    system: str = "cache[policy=lfu]",
    *,
    round: int = 0,
    samples_per_s: float | None = None,
    noise: float = 0.01,
    baseline: float | None = BASELINE,
    timed: dict[str, Any] | None = None,
    status: Status = Status.OK,
    reason: str = "",
    phase: str = "",
    notes: tuple[str, ...] = (),
    disturbed: tuple[str, ...] = (),
    started_at: str = "2026-11-01T12:00:00+00:00",
    checked: Verification | None = None,
    where: Environment | None = None,
    setting: dict[str, Any] | None = None,
    least: BeladyBound | None = None,
    **measured: Any,
) -> Record:
    """A record; `setting` goes to `cell`, `timed` to `turns`, `measured` to `measurement`.

    Only `ok` records carry a measurement and turns; one that failed in its turns has a measurement. Half the
    baseline's speed is the default, and of the baseline itself its own.
    """
    this_cell = cell(system, round=round, **(setting or {}))
    this_environment = where or environment(gpu=this_cell.device == "cuda")
    ok = status is Status.OK
    kept = ok or (phase == "turns" and status is not Status.WRONG_ANSWER)
    speed = samples_per_s or (baseline or BASELINE) * (1 if is_baseline(system) else 0.5)
    raced = ok and measured.get("same_kernel_as") is None
    return Record(
        key=record_key(this_cell, this_environment),
        cell=this_cell,
        status=status,
        reason=reason,
        phase=phase,
        started_at=started_at,
        wall_s=31.5,
        notes=notes,
        disturbed=disturbed,
        environment=this_environment,
        verification=checked if checked is not None else (verification() if kept else None),
        measurement=measurement(this_cell, **measured) if kept else None,
        turns=turns(this_cell, speed, noise=noise, baseline=baseline, **(timed or {})) if raced else None,
        optimum=least if this_cell.counts else None,
    )


def rounds(system: str, speeds: list[float], **changes: Any) -> list[Record]:
    """One record per speed in samples/s."""
    return [record(system, round=number, samples_per_s=speed, **changes) for number, speed in enumerate(speeds)]


def gpu_run() -> list[Record]:
    """A run on a GPU with every kind of row: baseline, ties, tolerance, failures, unsupported."""
    return [
        *rounds(
            "full_gpu",
            [BASELINE, BASELINE, BASELINE],
            offloads=False,
            placement="device",
            prior_knowledge="nothing",
            allocated_bytes=18 * GB,
        ),
        *rounds(
            "cache[policy=lfu]",
            [820_000, 838_000, 829_000],
            notes=("look-ahead reduced to 16",),
            least=optimum(),
        ),
        *rounds(
            "fbgemm_uvm_caching[policy=lru]",
            [800_000, 850_000, 815_000],
            placement="uvm cache",
            checked=verification(difference=3e-7, tolerance=1e-6),
        ),
        *rounds(
            "torchrec_uvm",
            [200_000, 204_000, 202_000],
            placement="uvm (managed)",
            prior_knowledge="nothing",
            overflow_batches=2,
        ),
        *rounds(
            "reference", [0, 0], status=Status.OOM_DEVICE, reason="needs 17.3 GB,\nthe device has 16 GB", phase="build"
        ),
        record("stranger|odd", status=Status.UNSUPPORTED, reason="no row-wise Adagrad; use --optimizer sgd"),
    ]


def cpu_run() -> list[Record]:
    """A run on a CPU with real data: a cache over a disk, a wrapper, and a system that is the baseline's own kernel."""
    setting = {"device": "cpu", "data": "real", "data_digest": "feed", "workload": "avazu", "scale": "1%"}
    setting |= {"cache_ratio": None, "device_budget_bytes": 50_000_000}
    resident: dict[str, Any] = {
        "setting": setting,
        "offloads": False,
        "placement": "host-resident",
        "prior_knowledge": "nothing",
    }
    return [
        *rounds("full_gpu", [BASELINE, BASELINE], **resident),
        *rounds("torchrec_uvm", [0.95 * BASELINE, 0.97 * BASELINE], **resident),
        *rounds("cache[tier=disk]", [0.7 * BASELINE, 0.73 * BASELINE], setting=setting, placement="disk"),
        *(record("fbgemm_uvm", round=number, same_kernel_as="full_gpu", **resident) for number in range(2)),
        record("stranger", setting=setting, status=Status.UNSUPPORTED, reason="needs a CUDA device"),
    ]


def shuffled(records: list[Record], seed: int = 0) -> list[Record]:
    """The same records in another order: no output may depend on it."""
    return random.Random(seed).sample(records, len(records))
