"""What a step costs by rows of the table, with equal slots and misses.

    python results/cache/table_size.py --dim 16 --out results/cache/table_size.json

Tables have 1 M to 178 M rows. The step is an embedding step alone, then that of the DLRM of `--scale small` around it.
All tables are in memory at once: with `--dim 16` they take 16 GB, with the default 32 twice that. Steps of all tables
take turns in one process, in blocks, forth and back; ratios are medians over the blocks of one turn each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import figure
import torch
from one_table import cached, embedding_step, in_turns, sliding
from torchrec import KeyedJaggedTensor

from suite.records.scales import SMALL
from suite.run.memory_probes import available_host_bytes
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.sizing import ROW_INDEX_BYTES
from workloads.dlrm import build_dlrm


def table_size(setting: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step by rows of the table, at equal slots and misses."""
    slots, hits, misses, lookups = 50_000, 10_000, 10_000, setting.lookups or 53_248
    largest = setting.rows or 177_944_275
    sizes = [*(size for size in (1_000_000, 10_000_000, 50_000_000) if size < largest), largest]
    needed = sum(sizes) * (4 * setting.dim + ROW_INDEX_BYTES)
    if needed > (free := available_host_bytes()):
        raise SystemExit(
            f"tables of {', '.join(f'{size:,}' for size in sizes)} rows take {needed / 1e9:.1f} GB with --dim "
            f"{setting.dim}, and {free / 1e9:.1f} GB are free: give a smaller --dim or --rows"
        )
    caches = {size: cached(size, slots, setting.dim, lookups, features=26) for size in sizes}
    streams = {size: sliding(size, hits, misses, lookups, features=26) for size in sizes}
    results = {}
    for what, step_of in (("embedding step", embedding_step), ("DLRM step", dlrm_step)):
        runs = {f"{size:,} rows": (cache, step_of(cache), streams[size]) for size, cache in caches.items()}
        results[what] = in_turns(runs, setting)
    return {"slots": slots, "dim": setting.dim, "lookups": lookups, "results": results}


def dlrm_step(cache: CachedEmbeddingBagCollection) -> Callable[[KeyedJaggedTensor], None]:
    """A training step of the DLRM of `--scale small` around a cache."""
    (table,) = cache.embedding_bag_configs()
    model = build_dlrm(
        cache,
        dense_columns=13,
        embedding_dim=table.embedding_dim,
        bottom_mlp=SMALL.bottom_mlp,
        top_mlp=SMALL.top_mlp,
        seed=0,
        device=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(batch: KeyedJaggedTensor) -> None:
        logits = model(torch.ones(batch.stride(), 13), batch)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits)).backward()
        optimizer.step()

    return step


def main(arguments: Sequence[str] | None = None) -> None:
    figure.leave_record("table-size", table_size, steps=480, words=__doc__, arguments=arguments)


if __name__ == "__main__":
    main()
