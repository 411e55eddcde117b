r"""How many batches of one id each the simulator replays in a minute, by policy, on this machine.

    python results/simulate/speed.py --out results/simulate/speed_single_ids.json

Ids follow Zipf's law of exponent 1 over a million rows, and a cache holds 1 % of them: what a batch costs shows. The
clock covers building the model and the whole replay; loops are compiled before, by a replay of two batches.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # else OpenMP's threads spin on cores that others need

from suite.records.environment import capture
from suite.records.store import write_json
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build, parse_policies
from suite.simulate.options import slots_of
from suite.simulate.trace_file import FileTrace
from systems.registry import Variant

POLICIES, ROWS, RATIO = "lru", 1_000_000, 0.01


def measure(policy: Variant, trace: FileTrace) -> dict[str, float]:
    """Speed of one policy, and how often it misses."""
    slots = slots_of(trace.rows, RATIO)
    replay(build(policy, Setting(trace=trace, span=Span(counted_from=0, stop=2), slots=slots)))
    span = Span(counted_from=trace.length // 3, stop=trace.length)
    start = time.perf_counter()
    model = build(policy, Setting(trace=trace, span=span, slots=slots))
    built = time.perf_counter()
    tally = replay(model)
    ended = time.perf_counter()
    return {
        "million_batches_per_minute_with_building": 60 * span.stop / (ended - start) / 1e6,
        "replay_s": ended - built,
        "build_s": built - start,
        "batches": span.stop,
        "slots": model.slots,
        "unique_misses_per_batch": tally.unique_misses / tally.batches,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per policy, and write a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    results = {}
    with TemporaryDirectory() as folder:
        drawn = (ROWS ** np.random.default_rng(0).random((asked.ids, 1))).astype(np.int32) - 1
        np.save(Path(folder) / "ids.npy", drawn)  # the lower ids are the more frequent
        trace = FileTrace(Path(folder) / "ids.npy", batch_size=1)
        for policy in parse_policies(asked.policies):
            found = results[str(policy)] = measure(policy, trace)
            sys.stdout.write(f"{policy!s:<20}{found['million_batches_per_minute_with_building']:>9.1f} M a minute\n")
    record = {
        "figure": "simulator",
        "workload": "single ids",
        "cache_ratio": RATIO,
        "environment": capture().model_dump(mode="json"),
        "results": results,
    }
    write_json(asked.out, record, indent=2)


if __name__ == "__main__":
    main()
