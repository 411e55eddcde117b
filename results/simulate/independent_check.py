"""Misses of our simulated policies beside those of libCacheSim, for one access at a time.

    python3 -m venv ~/libcachesim && ~/libcachesim/bin/pip install libcachesim==0.3.5
    python results/simulate/independent_check.py --other ~/libcachesim/bin/python \
        --out results/simulate/independent_check.json

libCacheSim is by other authors, shares no code with us, and is under the GPL: it is not imported here. A process of the
environment that `--other` names reads ids from a file and prints how many of them missed. Without `--other` our counts
are printed alone.
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
from numpy.typing import NDArray

from suite.records.store import write_json
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.models.registry import build, parse_policies
from suite.simulate.trace_file import FileTrace

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
        return {
            policy: {
                slots: replay(
                    build(parse_policies(policy)[0], Setting(trace=trace, span=span, slots=slots))
                ).unique_misses
                for slots in SLOTS
            }
            for policy in POLICIES
        }


def theirs(ids: NDArray[np.int64], python: Path) -> tuple[str, dict[str, dict[int, int]]]:
    """The version of libCacheSim in another environment, and its misses by our policy's name and size."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ids"
        ids.tofile(path)
        arguments = [str(python), "-c", OTHER, str(path), json.dumps(SLOTS), json.dumps(sorted(set(POLICIES.values())))]
        told = json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return told["version"], {
        policy: {int(slots): count for slots, count in told["misses"][other].items()}
        for policy, other in POLICIES.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both counts, and leave a record where asked; exit code 1 if any differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="Python of an environment with libcachesim")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    points = []
    versions = set()
    for name in STREAMS:
        ids = stream(name)
        mine = ours(ids)
        version, other = theirs(ids, asked.other) if asked.other else ("not run", {})
        versions.add(version)
        for policy, called in POLICIES.items():
            for slots in SLOTS:
                point = {"stream": name, "policy": policy, "libcachesim_policy": called, "slots": slots}
                counts = {"misses": mine[policy][slots], "libcachesim_misses": other.get(policy, {}).get(slots)}
                points.append({**point, **counts})
                sys.stdout.write(
                    f"{name:<10}{policy:<20}{slots:>6}{counts['misses']:>9,}{counts['libcachesim_misses'] or '':>9}\n"
                )
    if asked.out is not None:
        record = {"libcachesim": versions.pop(), "rows": ROWS, "accesses": ACCESSES, "points": points}
        write_json(asked.out, record)
    sys.exit(any(differs(point) for point in points))


def differs(point: dict[str, Any]) -> bool:
    """Whether both counted a policy differently."""
    return point["libcachesim_misses"] not in {None, point["misses"]}


if __name__ == "__main__":
    main()
