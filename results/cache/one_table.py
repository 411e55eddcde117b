"""Caches over one table, streams whose batches miss as many rows as wanted, and their steps timed in turns."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection

_ROTATING_ROWS = 1_000_000
"""Rows that miss in turn, at random places of the table, as many in any table."""


def features_of(names: list[str], ids: np.ndarray) -> KeyedJaggedTensor:
    """Ids `[features, samples]`, one per bag.

    With their offsets: were these made at the first lookup, then whoever came first would pay for them, and what stays
    behind of them would break up the memory that answers are written to, which costs more than a lookup.
    """
    values, ends = torch.from_numpy(ids.reshape(-1)), torch.arange(ids.size + 1)
    return KeyedJaggedTensor(names, values, lengths=torch.ones_like(values), offsets=ends, stride=ids.shape[1])


def cached(rows: int, slots: int, dim: int, lookups: int, *, features: int = 1) -> CachedEmbeddingBagCollection:
    """A cache of so many slots over one table."""
    names = [f"f{at}" for at in range(features)]
    return CachedEmbeddingBagCollection(
        [EmbeddingBagConfig(name="t", feature_names=names, num_embeddings=rows, embedding_dim=dim)],
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.05),
        cache_ratio=0.5,
        cache_rows={"t": slots},
        policy="lru",
        batch_lookups=lookups,
        seed=None,
    )


def embedding_step(cache: CachedEmbeddingBagCollection) -> Callable[[KeyedJaggedTensor], None]:
    """Plan, move, look up, backward, update."""

    def step(batch: KeyedJaggedTensor) -> None:
        values = cache(batch).values()
        values.backward(torch.full_like(values, 1e-3))

    return step


def sliding(size: int, hits: int, misses: int, lookups: int, *, features: int = 1) -> Iterator[KeyedJaggedTensor]:
    """Batches with so many distinct rows that were used last and so many that come for the first time in long."""
    generator = np.random.default_rng(0)
    order = generator.choice(size, min(size, _ROTATING_ROWS), replace=False)
    used = 0
    recent: deque[np.ndarray] = deque()
    for step in range(1_000_000):
        fresh = order[(used + np.arange(misses if step else hits + misses)) % order.size]
        used += fresh.size
        old = generator.choice(np.concatenate(list(recent)), hits, replace=False) if step and hits else fresh[:0]
        rows = np.concatenate([fresh, old])
        if fresh.size:
            recent.append(fresh)
        while len(recent) > 1 and sum(part.size for part in recent) - recent[0].size >= hits:
            recent.popleft()
        ids = np.concatenate([rows, generator.choice(rows, lookups - rows.size)])
        yield features_of([f"f{at}" for at in range(features)], generator.permutation(ids).reshape(features, -1))


def in_turns(
    runs: Mapping[
        str, tuple[CachedEmbeddingBagCollection, Callable[[KeyedJaggedTensor], None], Iterator[KeyedJaggedTensor]]
    ],
    setting: argparse.Namespace,
) -> dict[str, dict[str, float]]:
    """Times of steps with caches that train on streams of their own, in turns, and relative to the first."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(setting.steps // setting.block):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            cache, step, stream = runs[name]
            batches = [next(stream) for _ in range(setting.block)]
            if turn == setting.steps // setting.block // 2:
                cache.reset_counters()
            for index, batch in enumerate(batches):
                if index == setting.block // 4:
                    start = time.perf_counter()
                step(batch)
            times[name].append(1e3 * (time.perf_counter() - start) / (setting.block - setting.block // 4))
    first = next(iter(runs))
    steady = slice(len(times[first]) // 3, None)
    results = {}
    for name, (cache, _, _) in runs.items():
        counters = cache.counters()
        ratios = [own / base for own, base in zip(times[name][steady], times[first][steady], strict=True)]
        results[name] = {
            "ms_per_step": statistics.median(times[name][steady]),
            "relative_cost": statistics.median(ratios),
            "unique_misses_per_step": (counters.unique_misses or 0) / counters.steps,
        }
    return results
