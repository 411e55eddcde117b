"""Misses on the real samples in time order, and on the same rows shuffled: run as a script, with --write for the page.

    python results/streams/time_order.py --out results/streams/time_order.json --write

Reads the samples in the folder that EMBEDDING_OFFLOAD_DATA names (default: ../shared/data), and prepares and replays
them by the suite's own commands. A sample's tables have as many rows as it has distinct ids. Samples of a synthetic
stream are independent of each other, as shuffled rows are.
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compared_rows import FOLDER, LONG

from suite.records.store import write_json

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "synthetic.md"
MARKS = "<!-- time order: begin -->\n", "<!-- time order: end -->"
POLICIES = (
    "freq_cache",
    "freq_cache[look_ahead=4]",
    "freq_cache[policy=lfu]",
    "freq_cache[policy=lru]",
    "fbgemm_uvm_caching",
    "fbgemm_uvm_caching[policy=lfu]",
    "colossalai[policy=dataset]",
    "fae",
)
"""Belady's bound is not among them: in so few batches it depends on the rows that it starts with, free of charge."""
RATIOS = (0.05, 0.2)
BATCH = 128
"""A sample has 33 to 374 batches of so many rows. 22 to 100 are counted, behind others that warm the caches."""


def misses(dataset: str, lines: list[bytes], head: list[bytes]) -> dict[str, Any]:
    """Replay rows of a dataset's raw file in this order. Returns the record that `suite simulate` prints."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / LONG[dataset].removesuffix(".gz")
        raw.write_bytes(b"".join(head + lines))
        run("workloads", "prepare", dataset, "--input", str(raw), "--out", folder)
        ratios = ",".join(map(str, RATIOS))
        options = ["--workload", dataset, "--data-dir", folder, "--batch-size", str(BATCH), "--cache-ratio", ratios]
        found: dict[str, Any] = json.loads(
            run("suite", "simulate", *options, "--policies", ",".join(POLICIES), "--json")
        )
    del found["stream"]["data_dir"]
    return found


def run(module: str, *arguments: str) -> bytes:
    """What a command of the suite prints."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout


def missed(record: Mapping[str, Any]) -> list[str]:
    """Misses in per cent of distinct rows by policy, at each ratio; n/a: a batch has more than the slots."""
    found: dict[str, list[str]] = {}
    for row in record["rows"]:
        traffic = row["traffic"]
        share = f"{100 * traffic['unique_misses'] / traffic['unique_ids']:.1f}" if traffic else "n/a"
        found.setdefault(row["policy"], []).append(share)
    return [" / ".join(found[policy]) for policy in POLICIES]


def on_page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of the page."""
    lines = [f"| rows | {' | '.join(f'`{policy}`' for policy in POLICIES)} |", "| --- |" + " --: |" * len(POLICIES)]
    for dataset, orders in records.items():
        lines += [f"| `{dataset}`, {order} | {' | '.join(missed(record))} |" for order, record in orders.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Replay every sample in both orders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="put the table into docs/synthetic.md")
    options = parser.parse_args()
    records = {}
    for dataset, name in LONG.items():
        lines = gzip.decompress((FOLDER / name).read_bytes()).splitlines(keepends=True)
        head, rows = lines[: dataset == "avazu"], lines[dataset == "avazu" :]
        shuffled = random.Random(0).sample(rows, len(rows))
        records[dataset] = {"in time order": misses(dataset, rows, head), "shuffled": misses(dataset, shuffled, head)}
    write_json(options.out, records)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
        PAGE.write_text(before + MARKS[0] + on_page(records) + MARKS[1] + rest.partition(MARKS[1])[2], encoding="utf-8")
    sys.stdout.write(on_page(records))


if __name__ == "__main__":
    main()
