"""How fast rows are counted and sketched, in how much memory, and how far a sketch is off: run as a script.

python tests/bench/frequency_figures.py [--samples 2000000] [--memory 16MB]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

import numpy as np
import psutil
from datasketches import frequent_items_sketch
from torchrec import KeyedJaggedTensor

from suite.records.options import parse_bytes
from workloads.batch import Split
from workloads.frequency import FrequencySketch, TrainingIds, counted
from workloads.streams.synthetic import SyntheticWorkload

BATCH = 16_384


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="criteo_kaggle")
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--memory", default="16MB,64MB")
    options = parser.parse_args()
    workload = SyntheticWorkload.create(options.workload, batch_size=BATCH, seed=0)
    batches = [workload.batch(index, Split.TRAIN).features for index in range(options.samples // BATCH)]
    rows = [count for _, count in workload.tables]
    ids = np.concatenate([b.values().numpy().reshape(len(rows), BATCH).T.astype(np.int32) for b in batches])
    start = time.perf_counter()
    exact = counted(TrainingIds(ids), rows)
    seconds = time.perf_counter() - start
    say(f"{options.workload}, {len(ids):,} samples of {len(rows)} ids")
    say(f"counted: {ids.size / seconds / 1e6:.0f} M ids/s, {8 * sum(rows) / 1e6:.0f} MB of counts")
    for text in options.memory.split(","):
        say(sketch_line(dict(workload.tables), batches, exact, memory_bytes=parse_bytes(text, flag="--memory")))
    say(f"one sketch of 2**20 places, full: {place_bytes():.1f} bytes per place")


def sketch_line(
    tables: dict[str, int], batches: list[KeyedJaggedTensor], exact: list[np.ndarray], *, memory_bytes: int
) -> str:
    """Speed, stated and true error, and how many of the hottest rows are found."""
    start = time.perf_counter()
    sketch = FrequencySketch(tables, memory_bytes=memory_bytes)
    for features in batches:
        sketch.add(features)
    found = sketch.result(samples=len(batches) * BATCH)
    seconds = time.perf_counter() - start
    stated = max(found.error[name] / found.lookups[name] for name in tables)
    true = max(
        int((counts - found.accesses[name].numpy()).max()) / found.lookups[name]
        for name, counts in zip(tables, exact, strict=True)
    )
    estimates, counts = np.concatenate([t.numpy() for t in found.accesses.values()]), np.concatenate(exact)
    hot = counts.size // 100
    kept = np.argpartition(-estimates, hot)[:hot]
    best = np.partition(counts, counts.size - hot)[-hot:].sum()
    return (
        f"sketched in {memory_bytes / 1e6:g} MB: {sum(found.lookups.values()) / seconds / 1e6:.1f} M ids/s; off by at "
        f"most {true:.2e} of a table's accesses, stated {stated:.2e}; its hottest 1 % of the rows take "
        f"{100 * counts[kept].sum() / counts.sum():.2f} % of the accesses, the true hottest "
        f"{100 * best / counts.sum():.2f} %"
    )


def place_bytes() -> float:
    """Resident bytes of a full sketch per place of its map, with the Python numbers it holds."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    sketch = frequent_items_sketch(20)
    for row in range(1000, 1000 + (3 << 18)):
        sketch.update(row, 1)
    return (psutil.Process().memory_info().rss - before) / 2**20


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
