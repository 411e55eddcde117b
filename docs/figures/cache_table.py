"""The measured figures of `docs/cache-design.md` as a table, from the records in `results/cache`.

python docs/figures/cache_table.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parents[2] / "results" / "cache"
POLICIES = ("static", "lfu", "lru")
LOOK_AHEAD = (0, 4)


def record(name: str) -> dict[str, Any]:
    """What a benchmark left."""
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text())
    return found


def lines() -> list[tuple[str, str]]:
    """What was measured, and the figure."""
    planning, stages = record("planning"), (record("stage"), record("stage_one_thread"))
    sizes, cost, misses = record("table_size")["results"], record("miss_cost")["line"], record("misses")["results"]

    def by_policy(results: dict[str, Any], look_ahead: int, key: str, form: str) -> str:
        return " / ".join(f"{results[f'{policy}, look-ahead {look_ahead}'][key]:{form}}" for policy in POLICIES)

    def relative(stage: dict[str, Any], *, against: str) -> str:
        return " / ".join(
            f"{found[against]['relative_cost'] / found[f'freq_cache[look_ahead={ahead}]']['relative_cost']:.2f}"
            for found in stage["results"].values()
            if against in found
            for ahead in LOOK_AHEAD
        )

    def floor(stage: dict[str, Any]) -> str:
        moving = ("full_gpu and the moves", "full_gpu and the slots' side of the moves")
        found = [one for one in stage["results"].values() if moving[0] in one]
        return " / ".join(f"{one[name]['throughput_relative_to_full']:.2f}" for name in moving for one in found)

    def ahead(name: str) -> str:
        results = record(name)["results"].values()
        return " / ".join(f"{one['relative_speed']['freq_cache[look_ahead=4]']:.2f}" for one in results)

    made = [
        (
            f"planning {planning['ids_per_batch']:,} ids over {planning['rows']:,} rows, 1 %, ms, static / LFU / LRU",
            by_policy(planning["results"], 0, "ms_per_batch", ".1f"),
        ),
        ("the same with look-ahead 16", by_policy(planning["results"], 16, "ms_per_batch", ".1f")),
        (
            "index and policy on the host, B per row",
            by_policy(planning["results"], 0, "host_index_bytes_per_row", ".2f"),
        ),
        (
            "misses against Belady's, Kaggle stream, 1 %, look-ahead 0",
            by_policy(misses, 0, "relative_to_belady", ".2f"),
        ),
        ("look-ahead 16", by_policy(misses, 16, "relative_to_belady", ".2f")),
        ("look-ahead 64", by_policy(misses, 64, "relative_to_belady", ".2f")),
        (
            "planning of that stream, ms, static / LFU / LRU, look-ahead 16",
            by_policy(misses, 16, "ms_per_batch", ".1f"),
        ),
        ("look-ahead 64", by_policy(misses, 64, "ms_per_batch", ".1f")),
    ]
    for stage in stages:
        threads = f"{stage['threads']} thread{'s' * (stage['threads'] > 1)}"
        made += [
            (
                "embedding step against full tables, look-ahead 0 / 4, of 26 tables with SGD, with row-wise Adagrad, "
                f"1 with SGD, 1 with row-wise Adagrad; {threads}",
                relative(stage, against="full_gpu"),
            ),
            (
                f"against ColossalAI's cache, look-ahead 0 / 4, of 26 tables, 1 table; {threads}",
                relative(stage, against="colossalai_cache"),
            ),
            (
                "full tables that also copy the rows that miss, of 26 tables, 1 table, and the slots' side of it "
                f"alone; {threads}",
                floor(stage),
            ),
        ]
    made += [
        ("DLRM training, look-ahead 4 against 0, Kaggle / Avazu / 1TB", ahead("alone")),
        ("the same with larger MLPs (128; 128, 64), Kaggle", ahead("alone_larger_mlps")),
        *(
            (
                f"{what}, cost by rows of the table: {' / '.join(name.removesuffix(' rows') for name in found)}",
                " / ".join(f"{one['relative_cost']:.2f}" for one in found.values()),
            )
            for what, found in sizes.items()
        ),
        (
            "cost of a miss in an embedding step, ns (R^2 of a straight line)",
            f"{cost['ns_per_miss']:.0f} ({cost['r_squared']:.2f})",
        ),
    ]
    return made


def table() -> str:
    """Markdown."""
    return "\n".join(["| what | |", "|---|---:|", *(f"| {what} | {figure} |" for what, figure in lines())])


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
