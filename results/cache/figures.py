"""Measures a figure of docs/cache-design.md on this machine, and leaves its record beside this program.

    python results/cache/figures.py planning

The other figures are `misses`, `stage`, `table_size` and `miss_cost`: functions here and of `steps.py`, which say
what is measured. With `--dim 16` the tables of `table_size` take 16 GB, with the default 32 twice that.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # else OpenMP's threads spin on cores that others need

import numpy as np
import torch
from planners import POLICIES, ZipfTables, criteo_1tb_sizes, ids_of, planner_of
from steps import miss_cost, stage, table_size

from suite.records.environment import capture
from suite.records.store import write_atomically
from suite.simulate.models.belady import BeladyModel
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.trace import WorkloadTrace
from systems.freq_cache.cache.plan import Ids
from systems.freq_cache.cache.planner import Planner
from workloads.streams.synthetic import SyntheticWorkload

RATIO = 0.01
_BUILDS = 3
"""Planners of each kind: where its memory lies makes one faster than its equal by up to 1.7 times."""


def planning(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds to announce and plan a batch of 425,984 ids over the rows of Criteo 1TB, by policy.

    Ids follow Zipf's law, see `ZipfTables`. Beside the time stands that of a read at a random place of an index of that
    size, taken just before, for most of planning is such reads. Of the planners of each kind the middle one counts.
    """
    sizes = criteo_1tb_sizes(setting.rows or 177_944_275)
    stream = ZipfTables(sizes)
    samples = (setting.lookups or 425_984) // len(sizes)
    batches = [ids_of(stream.ids(samples), sizes) for _ in range(setting.steps)]
    frequencies = [counts.numpy() for counts in stream.frequencies()]
    anywhere, index = np.random.default_rng(0).integers(sum(sizes), size=1 << 18), np.ones(sum(sizes), np.int32)
    built: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _, look_ahead, policy in itertools.product(range(_BUILDS), (0, 16), POLICIES):
        planner = planner_of(policy, frequencies, ratio=RATIO)
        reads = []
        for _ in range(20):
            start = time.perf_counter()
            index.take(anywhere)
            reads.append(1e9 * (time.perf_counter() - start) / anywhere.size)
        times, missed = planned(planner, batches, look_ahead)
        steady = slice(len(times) // 2, len(times))
        built[f"{policy}, look-ahead {look_ahead}"].append(
            {
                "ms_per_batch": statistics.median(times[steady]),
                "ms_p90": float(np.quantile(times[steady], 0.9)),
                "ns_per_random_read": statistics.median(reads),
                "unique_misses_per_batch": statistics.mean(missed[steady]),
                "slots": planner.slots,
                "host_index_bytes_per_row": planner.index_bytes / planner.rows,
            }
        )
    results = {}
    for name, builds in built.items():
        middle = {key: statistics.median(found[key] for found in builds) for key in builds[0]}
        results[name] = {**middle, "ms_by_build": [found["ms_per_batch"] for found in builds]}
    return {"ids_per_batch": batches[0].values.size, "rows": sum(sizes), "results": results}


def misses(setting: argparse.Namespace) -> dict[str, Any]:
    """Unique misses per batch of the full Criteo Kaggle stream by policy and look-ahead, and Belady's minimum.

    The minimum is the simulator's: of the counted batches, with a start from the best of the most frequent rows.
    """
    samples = (setting.lookups or 425_984) // 26
    workload = SyntheticWorkload.create("criteo_kaggle", batch_size=samples, seed=0, max_rows=setting.rows)
    sizes = [rows for _, rows in workload.tables]
    batches = [
        ids_of(workload.batch(index).features.values().numpy().reshape(len(sizes), -1), sizes)
        for index in range(setting.steps)
    ]
    frequencies = [workload.frequencies()[name].numpy() for name, _ in workload.tables]
    steady = slice(setting.steps // 3, -64)  # the last batches have less to look ahead to

    first, stop, _ = steady.indices(setting.steps)
    trace, span = WorkloadTrace(workload), Span(counted_from=first, stop=stop)
    replays = Setting(trace=trace, span=span, slots=int(sum(sizes) * RATIO))
    least = replay(BeladyModel(replays, {"bypass": "off", "warm": "frequent"}))
    best = least.unique_misses / least.batches
    results = {}
    for policy, look_ahead in itertools.product(POLICIES, (0, 1, 4, 16, 64)):
        times, missed = planned(planner_of(policy, frequencies, ratio=RATIO), batches, look_ahead)
        count = statistics.mean(missed[steady])
        results[f"{policy}, look-ahead {look_ahead}"] = {
            "unique_misses": count,
            "relative_to_belady": count / best,
            "ms_per_batch": statistics.median(times[setting.steps // 3 :]),
        }
    return {
        "workload": "criteo_kaggle, synthetic",
        "rows": sum(sizes),
        "cache_ratio": RATIO,
        "batches_counted": least.batches,
        "belady_unique_misses": best,
        "results": results,
    }


def planned(planner: Planner, batches: Sequence[Ids], look_ahead: int) -> tuple[list[float], list[int]]:
    """Milliseconds to announce a batch and plan another, until none is left to announce; misses of every batch."""
    times, missed = [], []
    for batch in batches:
        start = time.perf_counter()
        planner.announce(planner.distinct(batch), changes=True)
        if planner.announced > look_ahead:
            missed.append(planner.plan().unique_misses)
            times.append(1e3 * (time.perf_counter() - start))
    while planner.announced:
        missed.append(planner.plan().unique_misses)
    return times, missed


FIGURES = {
    "planning": (planning, 120),
    "misses": (misses, 250),
    "stage": (stage, 240),
    "table_size": (table_size, 480),
    "miss_cost": (miss_cost, 480),
}
"""Function that measures each, and how many batches are enough."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("--rows", type=int, help="of all tables; default: those of the figure")
    parser.add_argument("--lookups", type=int, help="ids per batch; default: those of the figure")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--steps", type=int, help="batches; default: enough for the figure")
    parser.add_argument("--block", type=int, default=24, help="steps per turn")
    parser.add_argument("--out", type=Path, help="default: the figure's name, beside this program")
    setting = parser.parse_args(arguments)
    measure, enough = FIGURES[setting.figure]
    setting.steps = setting.steps or enough
    record = {
        "figure": setting.figure,
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "load_average": os.getloadavg()[0],
        "steps": setting.steps,
        **measure(setting),
    }
    text = json.dumps(record, indent=1) + "\n"
    write_atomically(setting.out or Path(__file__).with_name(f"{setting.figure}.json"), text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
