"""What planning a batch costs, by policy.

    python results/cache/planning.py --out results/cache/planning.json

A batch has 16,384 x 26 ids over the 177,944,275 rows of Criteo 1TB, 1 % of them cached. Ids follow Zipf's law with
exponent 1.05 in every table, ranks scrambled over the rows, and no batch comes twice. Beside the time of planning
stands that of a read at a random place of an index of that size, taken just before, for most of planning is such reads.
There are three planners of each kind, and the one in the middle counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import figure
import numpy as np
from planners import POLICIES, ids_of, planner_of
from zipf_tables import ZipfTables, criteo_1tb_sizes

_BUILDS = 3
"""Planners of each kind: where its memory lies makes one faster than its equal by up to 1.7 times."""


def planning(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds to announce and plan a batch, by policy."""
    sizes = criteo_1tb_sizes(setting.rows or 177_944_275)
    samples = (setting.lookups or 425_984) // len(sizes)
    stream = ZipfTables(sizes)
    batches = [ids_of(stream.ids(samples), sizes) for _ in range(setting.steps)]
    frequencies = [counts.numpy() for counts in stream.frequencies()]
    anywhere, index = np.random.default_rng(0).integers(sum(sizes), size=1 << 18), np.ones(sum(sizes), np.int32)
    built: dict[str, list[dict[str, float]]] = {}
    for _ in range(_BUILDS):
        for look_ahead in (0, 16):
            for policy in POLICIES:
                planner = planner_of(policy, frequencies, ratio=setting.ratio or 0.01)
                reads, times, misses = [], [], []
                for _ in range(20):
                    start = time.perf_counter()
                    index.take(anywhere)
                    reads.append(1e9 * (time.perf_counter() - start) / anywhere.size)
                for batch in batches:
                    start = time.perf_counter()
                    planner.announce(batch, changes=True)
                    if planner.announced > look_ahead:
                        plan = planner.plan()
                        times.append(1e3 * (time.perf_counter() - start))
                        misses.append(plan.unique_misses)
                steady = slice(len(times) // 2, None)
                found = {
                    "ms_per_batch": statistics.median(times[steady]),
                    "ms_p90": float(np.quantile(times[steady], 0.9)),
                    "ns_per_random_read": statistics.median(reads),
                    "unique_misses_per_batch": statistics.mean(misses[steady]),
                    "slots": planner.slots,
                    "host_index_bytes_per_row": planner.index_bytes / planner.rows,
                    "device_index_bytes_per_row": 0,
                }
                built.setdefault(f"{policy}, look-ahead {look_ahead}", []).append(found)
    results = {}
    for name, builds in built.items():
        middle = {key: statistics.median(found[key] for found in builds) for key in builds[0]}
        middle["million_ids_per_s"] = batches[0].values.size / middle["ms_per_batch"] / 1e3
        results[name] = {**middle, "ms_by_build": [found["ms_per_batch"] for found in builds]}
    return {"ids_per_batch": batches[0].values.size, "rows": sum(sizes), "results": results}


def main(arguments: Sequence[str] | None = None) -> None:
    figure.leave_record("planning", planning, steps=120, words=__doc__, arguments=arguments)


if __name__ == "__main__":
    main()
