"""What the temporal tracks cost to draw, on this machine.

    OMP_NUM_THREADS=1 python results/tracks/track_figures.py --out results/tracks/drawing.json

Milliseconds per batch of 16,384 samples of the full-size Criteo Kaggle stream, by track, on one thread; tracks take
turns.
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
from workloads.streams.synthetic import SyntheticWorkload
from workloads.streams.tracks import TRACKS


def drawing(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per batch by track, and per batch beyond the plain stream."""
    names = [setting.dataset, *(f"{setting.dataset}@{track}" for track in TRACKS)]
    options = {"batch_size": setting.batch_size, "seed": 0, "max_rows": setting.rows}
    workloads = {name: SyntheticWorkload.create(name, **options) for name in names}
    times: dict[str, list[float]] = {name: [] for name in workloads}
    for step in range(setting.steps):
        for name, workload in workloads.items():
            start = time.perf_counter()
            workload.batch(int(setting.start * workload.epoch_rows()) // workload.batch_size + step)
            times[name].append(1e3 * (time.perf_counter() - start))
    steady = slice(setting.steps // 4, None)
    plain = statistics.median(times[setting.dataset][steady])
    return {
        name: {
            "ms_per_batch": statistics.median(found[steady]),
            "ms_p90": float(np.quantile(found[steady], 0.9)),
            "ms_beyond_plain": statistics.median(found[steady]) - plain,
        }
        for name, found in times.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="criteo_kaggle", help="a synthetic one with one id per table and sample")
    parser.add_argument("--rows", type=int, help="of all tables; default: as published")
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--start", type=float, default=0.5, help="share of the training split before the first batch")
    parser.add_argument("--steps", type=int, default=60, help="batches")
    parser.add_argument("--out", type=Path, required=True)
    setting = parser.parse_args(arguments)
    record = {
        "figure": "drawing",
        "environment": capture(threads=torch.get_num_threads()).model_dump(mode="json"),
        "dataset": setting.dataset,
        "batch_size": setting.batch_size,
        "steps": setting.steps,
        "start": setting.start,
        "results": drawing(setting),
    }
    setting.out.parent.mkdir(parents=True, exist_ok=True)
    setting.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
