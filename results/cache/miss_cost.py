"""What a miss costs: a step over one table by how many of its rows are missing, and the line through them.

    python results/cache/miss_cost.py --out results/cache/miss_cost.json

Steps with different numbers of misses take turns in one process, in blocks, forth and back.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import figure
import numpy as np
from one_table import cached, embedding_step, in_turns, sliding


def miss_cost(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step by its misses, 20,000 distinct rows of 1 M each time, and the line through them."""
    lookups, distinct = setting.lookups or 53_248, 20_000
    counts = (0, 2_500, 5_000, 10_000, 15_000, 20_000)
    runs = {}
    for misses in counts:
        cache = cached(1_000_000, 50_000, setting.dim, lookups)
        stream = sliding(1_000_000, distinct - misses, misses, lookups)
        runs[f"{misses:,} misses"] = (cache, embedding_step(cache), stream)
    results = in_turns(runs, setting)
    least = next(iter(results.values()))["ms_per_step"]
    times = least * np.array([found["relative_cost"] for found in results.values()])  # steps of one turn each
    slope, intercept = np.polyfit(counts, times, 1)
    spread = 1 - np.sum((times - slope * np.array(counts) - intercept) ** 2) / np.sum((times - times.mean()) ** 2)
    line = {"ns_per_miss": 1e6 * float(slope), "ms_without": float(intercept), "r_squared": float(spread)}
    return {"lookups": lookups, "distinct_rows": distinct, "dim": setting.dim, "line": line, "results": results}


def main(arguments: Sequence[str] | None = None) -> None:
    figure.leave_record("miss-cost", miss_cost, steps=480, words=__doc__, arguments=arguments)


if __name__ == "__main__":
    main()
