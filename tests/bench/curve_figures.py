"""Miss-ratio curves: speed, memory, and how near a sample comes.

    python tests/bench/curve_figures.py                          all figures, criteo_kaggle at its published sizes
    python tests/bench/curve_figures.py --workload criteo_1tb    another stream
    python tests/bench/curve_figures.py --figures accuracy       one of speed, accuracy, planner

`speed`: ids/s and the peak of a fresh process, exact and sampled, without and with curves of single tables, beside the
time that making the ids takes, which another thread does meanwhile. `accuracy`: the sampled curve against the exact
one, in its own standard errors.
`planner`: the exact curve against `freq_cache[policy=lru]` without look-ahead, replayed. Compilation is outside the
clock. Prints a record; --out writes it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cache_figures
import numpy as np

from suite.simulate.curves.curves import miss_curves
from suite.simulate.models.model import Span
from suite.simulate.options import open_trace
from suite.simulate.traces.trace import Trace
from systems.freq_cache.planner.planner import Planner
from systems.freq_cache.planner.policy import LRU

SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Sizes at which curves are compared, as shares of the rows; those that hold every batch."""


def speed(setting: argparse.Namespace) -> dict[str, Any]:
    """Each way of following a stream, in a process of its own."""
    ways = {
        "exact": (None, False),
        "exact, tables too": (None, True),
        "sampled": (setting.sample, False),
        "sampled, tables too": (setting.sample, True),
    }
    found = {}
    for name, way in ways.items():
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            found[name] = pool.apply(_timed, (setting, *way))
    return found


def _timed(setting: argparse.Namespace, sample: float | None, per_table: bool) -> dict[str, float]:
    trace = _trace(setting)
    miss_curves(trace, Span(counted_from=0, stop=2), sample, per_table)
    begin = time.perf_counter()
    for index in range(_MADE):
        trace.ids(index)
    making_s = (time.perf_counter() - begin) / _MADE
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    miss_curves(trace, _span(setting), sample, per_table)
    batch_s = (time.perf_counter() - begin) / setting.batches
    cpu_s = (time.thread_time() - begin_cpu) / setting.batches
    return {
        "ids_per_s": trace.batch_lookups / batch_s,
        "ms_per_batch": 1e3 * batch_s,
        "ms_to_make_a_batch": 1e3 * making_s,
        "cpu_ms_per_batch_without_making": 1e3 * cpu_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def accuracy(setting: argparse.Namespace) -> dict[str, Any]:
    """Sampled against exact, of all tables and of the table where they are furthest apart."""
    trace, span = _trace(setting), _span(setting)
    exact, sampled = (miss_curves(trace, span, sample, True) for sample in (None, setting.sample))
    points = []
    for slots in _sizes(trace, exact.pooled.largest_batch):
        true, estimate = exact.pooled.misses(slots), sampled.pooled.misses(slots)
        points.append(
            {
                "slots": slots,
                "exact": true,
                "sampled": estimate,
                "off": estimate / true - 1,
                "standard_error": sampled.pooled.error(slots) / true,
            }
        )
    off, within = [], []
    for true, estimate in zip(exact.tables, sampled.tables, strict=True):
        for slots in np.unique(np.geomspace(max(1, true.largest_batch), true.rows, 20).astype(int)).tolist():
            difference = abs(estimate.misses(slots) - true.misses(slots))
            off.append(difference / max(1, true.unique_ids))
            within.append(difference <= 2 * estimate.error(slots))
    return {
        "sample": sampled.pooled.share,
        "points": points,
        "tables_mean_off_in_miss_rate": float(np.mean(off)),
        "tables_most_off_in_miss_rate": max(off),
        "tables_share_within_two_standard_errors": float(np.mean(within)),
    }


def planner(setting: argparse.Namespace) -> dict[str, Any]:
    """What the planner's own LRU misses, which is free in which of the rows of one batch leaves first."""
    trace, span = _trace(setting), _span(setting)
    curve = miss_curves(trace, span).pooled
    points = []
    for slots in _sizes(trace, curve.largest_batch):
        cache = Planner(rows=trace.rows, slots=slots, policy=LRU(), batch_ids=trace.batch_lookups)
        missed = 0
        for index in range(span.stop):
            cache.announce(trace.ids(index), changes=True)
            plan = cache.plan()
            missed += plan.unique_misses if index >= span.counted_from else 0
        points.append(
            {"slots": slots, "curve": curve.misses(slots), "planner": missed, "off": curve.misses(slots) / missed - 1}
        )
    return {"points": points}


_MADE = 10
"""Batches made to see how long that takes."""


def _trace(setting: argparse.Namespace) -> Trace:
    return open_trace(workload=setting.workload, scale=setting.scale, batch_size=setting.batch_size)


def _span(setting: argparse.Namespace) -> Span:
    return Span(counted_from=setting.batches // 3, stop=setting.batches)


def _sizes(trace: Trace, least: int) -> list[int]:
    return [slots for slots in (int(share * trace.rows) for share in SHARES) if slots >= least]


FIGURES = {"speed": speed, "accuracy": accuracy, "planner": planner}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--workload", default="criteo_kaggle", help="a synthetic stream")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--batch-size", type=int, help="default: the scale's")
    parser.add_argument("--batches", type=int, default=150, help="a third of them warms up")
    parser.add_argument("--sample", type=float, default=0.01)
    parser.add_argument("--out", type=Path)
    setting = parser.parse_args(arguments)
    record: dict[str, Any] = {"environment": cache_figures.environment()}
    record |= {name: getattr(setting, name) for name in ("workload", "scale", "batch_size", "batches")}
    for name in setting.figures:
        record[name] = FIGURES[name](setting)
    text = json.dumps(record, indent=1) + "\n"
    if setting.out is not None:
        setting.out.parent.mkdir(parents=True, exist_ok=True)
        setting.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
