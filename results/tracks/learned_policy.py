r"""What a policy that learns from features makes of a drifting stream: 3L-Cache by libCacheSim, beside our models.

    python3 -m venv /tmp/libcachesim && /tmp/libcachesim/bin/pip install libcachesim==0.3.5
    python results/tracks/learned_policy.py --other /tmp/libcachesim/bin/python --out results/tracks/learned_policy.json

libCacheSim is under the GPL: it is not imported here. A process of the environment that `--other` names reads the
accesses from a file and prints the misses. Accesses are the distinct rows of every batch, one after another: a small
stream, with a drift as fast as it is short.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build, parse_policies
from suite.simulate.traces.file import FileTrace
from suite.simulate.traces.trace import Distinct, WorkloadTrace
from workloads.streams.synthetic import SyntheticWorkload

STREAM = "criteo_kaggle@drift[lifetime=0.002]"
OURS = ("freq_cache[policy=lfu]", "lru", "s3fifo", "sieve", "lfuda", "tinylfu")
THEIRS = ("LRU", "ThreeLCache")
"""By libCacheSim's names; LRU shows that both saw the same accesses."""

OTHER = """
import array, importlib.metadata, json, sys
import libcachesim

rows = array.array("q")
with open(sys.argv[1], "rb") as file:
    rows.frombytes(file.read())
missed = {}
for name in json.loads(sys.argv[3]):
    cache = getattr(libcachesim, name)(cache_size=int(sys.argv[2]))
    hits = sum(cache.get(libcachesim.Request(obj_id=row, obj_size=1, clock_time=at)) for at, row in enumerate(rows))
    missed[name] = len(rows) - hits
print(json.dumps({"version": importlib.metadata.version("libcachesim"), "misses": missed}))
"""


def accesses(setting: argparse.Namespace) -> tuple[np.ndarray, int]:
    """The distinct rows of all batches, int64, and the rows of all tables."""
    workload = SyntheticWorkload.create(STREAM, batch_size=128, seed=0, max_rows=setting.rows)
    trace, batches = WorkloadTrace(workload), range(setting.batches)
    distinct = Distinct(trace.rows)
    return np.concatenate([distinct.of(trace.ids(index))[0] for index in batches]).astype(np.int64), trace.rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="Python of an environment with libcachesim; default: ours alone")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=400, help="of 128 samples")
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    rows, all_rows = accesses(asked)
    slots = int(asked.ratio * all_rows)
    with TemporaryDirectory() as folder:
        np.save(Path(folder) / "rows.npy", rows[:, None])
        trace = FileTrace(Path(folder) / "rows.npy", batch_size=1)
        setting = Setting(trace=trace, span=Span(counted_from=0, stop=rows.size), slots=slots)
        wanted = [*parse_policies(",".join(OURS))[: len(OURS)], *parse_policies("belady[warm=off]")[:1]]
        misses = {str(policy): replay(build(policy, setting)).unique_misses for policy in wanted}
        version = None
        if asked.other is not None:
            rows.tofile(Path(folder) / "rows")
            command = [str(asked.other), "-c", OTHER, f"{folder}/rows", str(slots), json.dumps(THEIRS)]
            told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            misses |= {f"libcachesim {name}": count for name, count in told["misses"].items()}
            version = told["version"]
    record = {"stream": STREAM, "rows": all_rows, "slots": slots, "accesses": rows.size, "libcachesim": version}
    asked.out.write_text(json.dumps(record | {"misses": misses}, indent=1) + "\n")
    for name, count in sorted(misses.items(), key=lambda item: item[1]):
        sys.stdout.write(f"{name:<28}{count:>12,}{count / rows.size:>8.1%}\n")


if __name__ == "__main__":
    main()
