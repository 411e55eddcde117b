"""Misses of our simulated policies beside those of libCacheSim, for one access at a time.

    python3 -m venv ~/libcachesim && ~/libcachesim/bin/pip install libcachesim==0.3.5
    python results/simulate/independent_check.py --other ~/libcachesim/bin/python \
        --out results/simulate/independent_check.json

libCacheSim is by other authors, shares no code with us, and is under the GPL: it is not imported here. A process of the
environment that `--other` names reads ids from a file and prints how many of them missed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.records.environment import capture
from suite.records.store import write_json
from suite.simulate.models.model import Replay, Setting, Span
from suite.simulate.models.registry import build, parse_policies
from suite.simulate.trace import FileTrace, replayed

ROWS, ACCESSES = 10_000, 40_000
SLOTS = (100, 1_000)
POLICIES = {
    "lru": "LRU",
    "belady[warm=off]": "Belady",
}
"""Ours, and what libCacheSim calls it."""

OTHER = """
import array, importlib.metadata, json, sys
import libcachesim

path, slots, names = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
ids = array.array("q")
with open(path, "rb") as file:
    ids.frombytes(file.read())
never = 2**62
following, next_use = {}, array.array("q", [never]) * len(ids)
for place in range(len(ids) - 1, -1, -1):
    next_use[place] = following.get(ids[place], never)
    following[ids[place]] = place
missed = {}
for name in names:
    for size in slots:
        cache = getattr(libcachesim, name)(cache_size=size)
        hits = 0
        for place, row in enumerate(ids):
            request = libcachesim.Request(obj_id=row, obj_size=1, next_access_vtime=next_use[place])
            hits += cache.get(request)
        missed.setdefault(name, {})[size] = len(ids) - hits
print(json.dumps({"version": importlib.metadata.version("libcachesim"), "misses": missed}))
"""
"""The other process: it prints misses by name and size."""


def stream(name: str) -> NDArray[np.int64]:
    """Ids from a seed, int64 `[accesses]`: `skewed` keeps its popular rows, those of `drifting` change."""
    draw = np.random.default_rng(0)
    ranks = (ROWS * draw.random(ACCESSES) ** 3).astype(np.int64)
    scattered = draw.permutation(ROWS)
    moved = np.arange(ACCESSES) // 20 if name == "drifting" else 0
    return scattered[(ranks + moved) % ROWS]


STREAMS = ("skewed", "drifting")


def ours(ids: NDArray[np.int64]) -> dict[str, dict[int, int]]:
    """Misses by policy and size, each id a batch of its own."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ids.npy"
        np.save(path, ids[:, None])
        trace = FileTrace(path, batch_size=1)
        span = Span(counted_from=0, stop=ids.size)
        models = {
            (policy, slots): Replay(build(parse_policies(policy)[0], Setting(trace=trace, span=span, slots=slots)))
            for policy in POLICIES
            for slots in SLOTS
        }
        for batch in replayed(trace, 0, span.stop):
            for one in models.values():
                one.take(batch)
        return {policy: {slots: models[policy, slots].finish().unique_misses for slots in SLOTS} for policy in POLICIES}


def theirs(ids: NDArray[np.int64], python: Path) -> dict[str, Any]:
    """The version of libCacheSim in another environment, and its misses by its policy's name and size."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ids"
        ids.tofile(path)
        arguments = [str(python), "-c", OTHER, str(path), json.dumps(SLOTS), json.dumps(list(POLICIES.values()))]
        told = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(told))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both counts, and leave a record; exit code 1 if any differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="Python of an environment with libcachesim")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    points = []
    for name in STREAMS:
        ids = stream(name)
        mine, other = ours(ids), theirs(ids, asked.other)
        points += [
            {
                "stream": name,
                "policy": policy,
                "libcachesim_policy": called,
                "slots": slots,
                "misses": mine[policy][slots],
                "libcachesim_misses": other["misses"][called][str(slots)],
            }
            for policy, called in POLICIES.items()
            for slots in SLOTS
        ]
    sys.stdout.write(pd.DataFrame(points).to_string(index=False) + "\n")
    record = {
        "environment": capture().model_dump(mode="json"),
        "libcachesim": other["version"],
        "rows": ROWS,
        "accesses": ACCESSES,
        "points": points,
    }
    write_json(asked.out, record)
    sys.exit(any(point["libcachesim_misses"] != point["misses"] for point in points))


if __name__ == "__main__":
    main()
