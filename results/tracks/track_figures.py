"""What the temporal tracks cost to draw, and what each does to a cache, on this machine. One command per figure:

    python results/tracks/track_figures.py drawing --out results/tracks/drawing.json
    python results/tracks/track_figures.py misses --out results/tracks/misses.json

- `drawing`: milliseconds per batch of 16,384 samples of the full-size Criteo Kaggle stream, by track, on one thread;
  tracks take turns. Run it with `OMP_NUM_THREADS=1`.
- `misses`: unique misses per batch of the same stream, planned without look-ahead, 1 % of the rows cached, by track and
  policy. `static` ranks rows by the expected accesses of the whole training split, `static, prefix` by those of its
  first tenth. Batches come from the middle of the training split, and every cache starts empty: the first third of the
  batches fill it and are not counted.

The record says what the machine is. Misses do not depend on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suite.records.environment import capture
from systems.freq_cache import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.planner.planner import Ids, Plan, Planner
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.tracks import TRACKS

PREFIX = 0.1
POLICIES = {"static": 1.0, "static, prefix": PREFIX, "lfu": None, "lru": None}
"""Prefix of the training split that ranks rows; None: the policy counts by itself."""


def drawing(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per batch by track, and per batch beyond the plain stream."""
    workloads = {name: stream(name, setting) for name in names(setting)}
    times: dict[str, list[float]] = {name: [] for name in workloads}
    for step in range(setting.steps):
        for name, workload in workloads.items():
            start = time.perf_counter()
            workload.batch(first_batch(workload, setting) + step)
            times[name].append(1e3 * (time.perf_counter() - start))
    steady = slice(setting.steps // 4, None)
    plain = statistics.median(times[setting.dataset][steady])
    results = {
        name: {
            "ms_per_batch": statistics.median(found[steady]),
            "ms_p90": float(np.quantile(found[steady], 0.9)),
            "ms_beyond_plain": statistics.median(found[steady]) - plain,
        }
        for name, found in times.items()
    }
    return {"results": results}


def misses(setting: argparse.Namespace) -> dict[str, Any]:
    """Unique misses and hit rate per batch, by track and policy, and relative to the policy on the plain stream."""
    results: dict[str, dict[str, Any]] = {}
    for name in names(setting):
        workload = stream(name, setting)
        sizes = [rows for _, rows in workload.tables]
        first = first_batch(workload, setting)
        batches = []
        for index in range(first, first + setting.steps):
            ids: np.ndarray = workload.batch(index).features.values().numpy()
            batches.append(Ids(ids, np.arange(1, len(sizes) + 1) * (ids.size // len(sizes)), np.cumsum(sizes) - sizes))
        results[name] = {}
        for policy, prefix in POLICIES.items():
            frequencies = [counts.numpy() for counts in workload.frequencies(prefix or 1.0).values()]
            made: Policy = StaticFrequency(frequencies) if prefix else LFU(sum(sizes)) if policy == "lfu" else LRU()
            del frequencies
            plans = planned(Planner(rows=sum(sizes), slots=int(sum(sizes) * setting.ratio), policy=made), batches)
            plans = plans[setting.steps // 3 :]
            missed = statistics.mean(plan.unique_misses for plan in plans)
            unique = statistics.mean(plan.unique_ids for plan in plans)
            plain = results[setting.dataset].get(policy, {}).get("unique_misses", missed)
            results[name][policy] = {
                "unique_misses": missed,
                "unique_ids": unique,
                "unique_hit_rate": 1 - missed / unique,
                "relative_to_plain": missed / plain,
            }
    return {
        "cache_ratio": setting.ratio,
        "prefix": PREFIX,
        "batches_counted": setting.steps - setting.steps // 3,
        "results": results,
    }


def planned(planner: Planner, batches: Sequence[Ids]) -> list[Plan]:
    """A plan for each batch, without look-ahead."""
    planner.warm_up()
    plans = []
    for batch in batches:
        planner.announce(batch, changes=True)
        plans.append(planner.plan())
    return plans


def names(setting: argparse.Namespace) -> list[str]:
    """The plain stream, then every track."""
    return [setting.dataset, *(f"{setting.dataset}@{track}" for track in TRACKS)]


def stream(name: str, setting: argparse.Namespace) -> SyntheticWorkload:
    """A stream at the setting's sizes."""
    return SyntheticWorkload.create(name, batch_size=setting.batch_size, seed=0, max_rows=setting.rows)


def first_batch(workload: SyntheticWorkload, setting: argparse.Namespace) -> int:
    """The batch with which a run begins."""
    return int(setting.start * workload.epoch_rows()) // workload.batch_size


FIGURES = {"drawing": drawing, "misses": misses}
STEPS = {"drawing": 60, "misses": 192}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument(
        "--dataset", default="criteo_kaggle", help="a synthetic dataset with one id per table and sample"
    )
    parser.add_argument("--rows", type=int, help="of all tables; default: as published")
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--ratio", type=float, default=0.01, help="cached rows as a share of all")
    parser.add_argument("--start", type=float, default=0.5, help="share of the training split before the first batch")
    parser.add_argument("--steps", type=int, help="batches; default: those of the figure")
    parser.add_argument("--out", type=Path, required=True)
    setting = parser.parse_args(arguments)
    setting.steps = setting.steps or STEPS[setting.figure]
    record = {
        "figure": setting.figure,
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "dataset": setting.dataset,
        "batch_size": setting.batch_size,
        "steps": setting.steps,
        "start": setting.start,
    }
    record |= FIGURES[setting.figure](setting)
    setting.out.parent.mkdir(parents=True, exist_ok=True)
    setting.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
