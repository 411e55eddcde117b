"""Fabricated records: complete, deterministic, and with round numbers, so that tests can say what a table must show."""

from __future__ import annotations

import random
from typing import Any

from suite.records.record import (
    Cell,
    Check,
    Environment,
    Measurement,
    Memory,
    Optimum,
    Quality,
    Record,
    Timing,
    Traffic,
    Verification,
    record_key,
)
from suite.records.status import Status

GB = 10**9


def cell(system: str = "cache[policy=lfu]", **changes: Any) -> Cell:
    values: dict[str, Any] = {
        "workload": "criteo_kaggle",
        "data": "synthetic",
        "scale": "full",
        "device": "cuda",
        "optimizer": "rowwise_adagrad",
        "lr": 0.1,
        "eps": 1e-8,
        "batch_size": 16384,
        "embedding_dim": 128,
        "bottom_mlp": (512, 256),
        "top_mlp": (512, 256, 1),
        "cache_ratio": 0.01,
        "warmup_steps": 20,
        "windows": 5,
        "window_steps": 40,
        "counted_steps": 10,
        "evaluation_batches": 8,
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
    samples_per_s: float = 819_200.0,
    *,
    device: str = "cuda",
    auroc: float = 0.7911,
    offloads: bool = True,
    placement: str = "cached",
    epoch_measured: bool = False,
    overflow_batches: int = 0,
    allocated_bytes: int = int(1.25 * GB),
) -> Measurement:
    on_gpu = device == "cuda"
    steps_per_s = samples_per_s / 16384
    return Measurement(
        placement=placement,
        offloads=offloads,
        timing=Timing(
            window_s=tuple(40 / steps_per_s for _ in range(5)),
            window_steps=40,
            steps_per_s=steps_per_s,
            samples_per_s=samples_per_s,
            data_s_per_step=0.01,
            data_wait_s=0.0,
            batches_made="by the training process, before the clock",
            producers=0,
            training_threads=16,
            build_s=3.0,
            verify_s=2.0,
            evaluate_s=1.0,
            total_s=30.0,
        ),
        quality=Quality(auroc=auroc, accuracy=0.7825, samples=131072, best_auroc=0.8012, final_loss=0.45),
        memory=Memory(
            device_allocated_bytes=allocated_bytes if on_gpu else None,
            device_reserved_bytes=2 * GB if on_gpu else None,
            device_used_bytes=3 * GB if on_gpu else None,
            host_peak_rss_bytes=int(18.5 * GB),
            host_baseline_rss_bytes=GB,
            anatomy_bytes={"device/rows": 172_000_000, "device/state": 1_350_000, "host/rows": 17 * GB},
        ),
        traffic=Traffic(
            steps=10,
            lookups=4_259_840,
            unique_ids=1_000_000,
            unique_misses=50_000,
            lookup_misses=60_000,
            bytes_fetched=25_800_000,
            bytes_written_back=20_640_000,
            overflow_batches=overflow_batches,
        ),
        epoch_s=39_291_954 / samples_per_s,
        epoch_measured=epoch_measured,
    )


def optimum() -> Optimum:
    return Optimum(
        slots=337_625, bypasses=False, first_step=220, steps=10, unique_misses=40_000, bytes_moved=37_152_000
    )


def record(
    system: str = "cache[policy=lfu]",
    *,
    round: int = 0,
    samples_per_s: float = 819_200.0,
    status: Status = Status.OK,
    reason: str = "",
    phase: str = "",
    notes: tuple[str, ...] = (),
    disturbed: tuple[str, ...] = (),
    started_at: str = "2026-11-01T12:00:00+00:00",
    checked: Verification | None = None,
    where: Environment | None = None,
    setting: dict[str, Any] | None = None,
    least: Optimum | None = None,
    **measured: Any,
) -> Record:
    """A record; `measured` goes to `measurement`, `setting` to `cell`. Only `ok` records carry a measurement."""
    this_cell = cell(system, round=round, **(setting or {}))
    this_environment = where or environment(gpu=this_cell.device == "cuda")
    ok = status is Status.OK
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
        verification=checked if checked is not None else (verification() if ok else None),
        measurement=measurement(samples_per_s, device=this_cell.device, **measured) if ok else None,
        optimum=least,
    )


def rounds(system: str, speeds: list[float], **changes: Any) -> list[Record]:
    """One record per speed in samples/s."""
    return [record(system, round=number, samples_per_s=speed, **changes) for number, speed in enumerate(speeds)]


def gpu_run() -> list[Record]:
    """A run on a GPU with every kind of row: baseline, ties, tolerance, failures, unsupported."""
    return [
        *rounds(
            "full_gpu", [1_600_000, 1_640_000, 1_620_000], offloads=False, placement="device", allocated_bytes=18 * GB
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
        *rounds("torchrec_uvm", [200_000, 204_000, 202_000], placement="uvm (managed)", overflow_batches=2),
        *rounds(
            "reference", [0, 0], status=Status.OOM_DEVICE, reason="needs 17.3 GB,\nthe device has 16 GB", phase="build"
        ),
        record("stranger|odd", status=Status.UNSUPPORTED, reason="no row-wise Adagrad; use --optimizer sgd"),
    ]


def cpu_run() -> list[Record]:
    """A run on a CPU with real data, where nothing offloads but a cache over a disk."""
    setting = {"device": "cpu", "data": "real", "data_digest": "feed", "workload": "avazu", "scale": "1%"}
    setting |= {"cache_ratio": None, "device_budget_bytes": 50_000_000}
    return [
        *rounds("torchrec_uvm", [9_000, 9_100], setting=setting, offloads=False, placement="host-resident"),
        *rounds("cache[tier=disk]", [7_000, 7_300], setting=setting, placement="disk", epoch_measured=True),
        record("full_gpu", setting=setting, status=Status.UNSUPPORTED, reason="needs a CUDA device"),
    ]


def shuffled(records: list[Record], seed: int = 0) -> list[Record]:
    """The same records in another order: no output may depend on it."""
    return random.Random(seed).sample(records, len(records))
