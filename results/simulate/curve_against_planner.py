"""The curve of an LRU cache against the planner's own `lru`, which may evict the rows of one batch in another order.

    python results/simulate/curve_against_planner.py                          criteo_kaggle at its published sizes
    python results/simulate/curve_against_planner.py --workload criteo_1tb    another stream

Replays the stream through `freq_cache[policy=lru]` without look-ahead at several sizes and prints a record.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.records.environment import capture
from suite.simulate.curves.curves import miss_curves
from suite.simulate.models.model import Span
from suite.simulate.options import open_trace
from suite.simulate.traces.trace import Trace
from systems.freq_cache.planner.planner import Planner
from systems.freq_cache.planner.policy import LRU

SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Sizes at which the two are compared, as shares of the rows; those that hold every batch."""


def compared(trace: Trace, span: Span) -> list[dict[str, Any]]:
    """Misses by slots, of the curve and of the planner."""
    curve = miss_curves(trace, span).pooled
    points = []
    for slots in (int(share * trace.rows) for share in SHARES):
        if slots < curve.largest_batch:
            continue
        cache = Planner(rows=trace.rows, slots=slots, policy=LRU(), batch_ids=trace.batch_lookups)
        missed = 0
        for index in range(span.stop):
            cache.announce(trace.ids(index), changes=True)
            plan = cache.plan()
            missed += plan.unique_misses if index >= span.counted_from else 0
        points.append(
            {"slots": slots, "curve": curve.misses(slots), "planner": missed, "off": curve.misses(slots) / missed - 1}
        )
    return points


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="criteo_kaggle", help="a synthetic stream")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--batch-size", type=int, help="default: the scale's")
    parser.add_argument("--batches", type=int, default=150, help="a third of them warms up")
    parser.add_argument("--out", type=Path)
    setting = parser.parse_args(arguments)
    trace = open_trace(workload=setting.workload, scale=setting.scale, batch_size=setting.batch_size)
    record: dict[str, Any] = {
        "environment": capture(threads=len(os.sched_getaffinity(0))).model_dump(mode="json"),
        **{name: getattr(setting, name) for name in ("workload", "scale", "batch_size", "batches")},
        "points": compared(trace, Span(counted_from=setting.batches // 3, stop=setting.batches)),
    }
    text = json.dumps(record, indent=1) + "\n"
    if setting.out is not None:
        setting.out.parent.mkdir(parents=True, exist_ok=True)
        setting.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
