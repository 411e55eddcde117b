r"""What simulating costs at full size: ids per second and peak memory of every policy, on this machine.

    python results/simulate/speed.py --out results/simulate/speed.json
    python results/simulate/speed.py --policies freq_cache[policy=lfu],belady --batches 2348 --warmup 50
    python results/simulate/speed.py --policies lru,s3fifo,sieve,lfuda,tinylfu --single-ids 1000000 \
        --out results/simulate/speed_single_ids.json

Every policy runs in a fresh process, with as many threads as cores: a stream is replayed over the tables at their
published sizes, batches of 16,384 samples, a cache of 1 % of the rows. The clock covers the whole replay, warm-up
batches and making all batches included, but not the building of the model, which has a time of its own; loops are
compiled before, by a replay of two batches. Memory is the peak of the resident set, interpreter and libraries included.
With `--single-ids` every batch is one id, by Zipf's law of exponent 1 over a million rows: what a batch costs shows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # else OpenMP's threads spin on cores that others need

from suite.records.environment import capture
from suite.run.memory_probes import peak_rss_bytes, rss_bytes
from suite.simulate.models.model import CannotReplay, Setting, Span, replay
from suite.simulate.models.registry import build, parse_policies
from suite.simulate.options import open_trace
from suite.simulate.sweep import slots_of
from suite.simulate.traces.trace import Trace
from systems.registry import Variant


def measure(policy: Variant, *, open_it: Callable[[], Trace], ratio: float, span: Span) -> dict[str, Any]:
    """Speed and memory of one policy, or why it cannot run."""
    trace = open_it()
    libraries = rss_bytes()
    setting = Setting(trace=trace, span=span, slots=slots_of(trace.rows, ratio))
    try:
        replay(build(policy, Setting(trace=trace, span=Span(counted_from=0, stop=2), slots=setting.slots)))
        start = time.perf_counter()
        model = build(policy, setting)
        built = time.perf_counter()
        tally = replay(model)
        ended = time.perf_counter()
    except CannotReplay as error:
        return {"reason": str(error)}
    ids = tally.lookups * span.stop // tally.batches
    return {
        "million_ids_per_s": ids / (ended - built) / 1e6,
        "million_ids_per_s_with_building": ids / (ended - start) / 1e6,
        "million_batches_per_minute_with_building": 60 * span.stop / (ended - start) / 1e6,
        "replay_s": ended - built,
        "build_s": built - start,
        "batches": span.stop,
        "ids": ids,
        "slots": model.slots,
        "peak_bytes": peak_rss_bytes(),
        "before_bytes": libraries,
        "unique_misses_per_batch": tally.unique_misses / tally.batches,
    }


def _in_process(policies: Sequence[Variant], **options: Any) -> dict[str, dict[str, Any]]:
    """Figures by policy, each from a process of its own: a peak can only rise in one."""
    found = {}
    for policy in policies:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[str(policy)] = pool.apply(partial(measure, policy, **options))
        _print(str(policy), found[str(policy)])
    return found


def _print(policy: str, figures: Mapping[str, Any]) -> None:
    if "reason" in figures:
        sys.stdout.write(f"{policy:<42}{figures['reason']}\n")
    else:
        sys.stdout.write(
            f"{policy:<42}{figures['million_ids_per_s']:>9.1f}{figures['million_ids_per_s_with_building']:>13.1f}"
            f"{figures['build_s']:>9.1f}{figures['peak_bytes'] / 1e9:>9.2f}"
            f"{figures['unique_misses_per_batch']:>12,.0f}\n"
        )
    sys.stdout.flush()


def single_ids(count: int, rows: int = 1_000_000) -> np.ndarray:
    """Ids `[count, 1]` of one table, of which the lower ones are the more frequent."""
    return (rows ** np.random.default_rng(0).random((count, 1))).astype(np.int32) - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per policy, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="criteo_kaggle")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--policies", default="all")
    parser.add_argument("--cache-ratio", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--batches", type=int, default=100, help="counted behind the warm-up")
    parser.add_argument("--single-ids", type=int, help="so many batches of one id each, instead of a workload's")
    parser.add_argument("--out", type=Path, help="a record, JSON")
    asked = parser.parse_args(arguments)
    open_it = partial(open_trace, workload=asked.workload, scale=asked.scale, batch_size=asked.batch_size)
    span = Span(counted_from=asked.warmup, stop=asked.warmup + asked.batches)
    with TemporaryDirectory() as folder:
        if asked.single_ids:
            path = Path(folder) / "ids.npy"
            np.save(path, single_ids(asked.single_ids))
            open_it = partial(open_trace, workload=asked.workload, scale=asked.scale, batch_size=1, trace=path)
            span = Span(counted_from=asked.single_ids // 3, stop=asked.single_ids)
        sys.stdout.write(f"{'policy':<42}{'M ids/s':>9}{'with build':>13}{'build s':>9}{'peak GB':>9}{'misses':>12}\n")
        results = _in_process(parse_policies(asked.policies), open_it=open_it, ratio=asked.cache_ratio, span=span)
    if asked.out is not None:
        record = {
            "figure": "simulator",
            "workload": "single ids" if asked.single_ids else asked.workload,
            "scale": None if asked.single_ids else asked.scale,
            "cache_ratio": asked.cache_ratio,
            "environment": capture(threads=len(os.sched_getaffinity(0))).model_dump(mode="json"),
            "results": results,
        }
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
