"""How many rows a batch misses, by policy and look-ahead, against Belady's minimum for whole batches.

    python results/cache/misses.py --out results/cache/misses.json

The stream is that of Criteo Kaggle at its published size, with 1 % of the rows cached.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import figure
import numpy as np
from planners import POLICIES, ids_of, planned, planner_of

from workloads.streams.synthetic import SyntheticWorkload


def misses(setting: argparse.Namespace) -> dict[str, Any]:
    """Unique misses per batch of the Criteo Kaggle stream by policy and look-ahead, against Belady's minimum."""
    samples = (setting.lookups or 425_984) // 26
    workload = SyntheticWorkload.create("criteo_kaggle", batch_size=samples, seed=0, max_rows=setting.rows)
    sizes = [rows for _, rows in workload.tables]
    batches = [ids_of(_features(workload, index), sizes) for index in range(setting.steps)]
    frequencies = [workload.frequencies()[name].numpy() for name, _ in workload.tables]
    ratio = setting.ratio or 0.01
    steady = slice(setting.steps // 3, -64)  # the last batches have less to look ahead to

    def run(policy: str, look_ahead: int) -> tuple[float, float]:
        plans = planned(planner_of(policy, frequencies, ratio=ratio), batches, look_ahead)
        counted, times = [], []
        for _ in batches:
            start = time.perf_counter()
            counted.append(next(plans).unique_misses)
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.mean(counted[steady]), statistics.median(times[steady])

    best, _ = run("static", len(batches))
    results = {}
    for policy in POLICIES:
        for look_ahead in (0, 1, 4, 16, 64):
            count, ms = run(policy, look_ahead)
            results[f"{policy}, look-ahead {look_ahead}"] = {
                "unique_misses": count,
                "relative_to_belady": count / best,
                "ms_per_batch": ms,
            }
    return {
        "workload": "criteo_kaggle, synthetic",
        "rows": sum(sizes),
        "cache_ratio": ratio,
        "batches_counted": len(range(*steady.indices(setting.steps))),
        "belady_unique_misses": best,
        "results": results,
    }


def _features(workload: SyntheticWorkload, index: int) -> np.ndarray:
    values: np.ndarray = workload.batch(index).features.values().numpy()
    return values.reshape(len(workload.tables), -1)


def main(arguments: Sequence[str] | None = None) -> None:
    figure.leave_record("misses", misses, steps=250, words=__doc__, arguments=arguments)


if __name__ == "__main__":
    main()
