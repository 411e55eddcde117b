"""Planners of the cache without a cache around them: they decide on moves, and no row moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from systems.freq_cache import LFU, LRU, Policy, StaticFrequency
from systems.freq_cache.planner.planner import Ids, Plan, Planner

POLICIES = ("static", "lfu", "lru")


def ids_of(ids: np.ndarray, sizes: Sequence[int]) -> Ids:
    """Ids `[tables, samples]` as a planner takes them."""
    starts = np.cumsum(sizes) - sizes
    return Ids(ids.reshape(-1), np.arange(1, len(sizes) + 1) * ids.shape[1], starts)


def planner_of(policy: str, frequencies: Sequence[np.ndarray], *, ratio: float) -> Planner:
    """A planner that has been warmed up."""
    rows = sum(counts.size for counts in frequencies)
    made: Policy = StaticFrequency(frequencies) if policy == "static" else LFU(rows) if policy == "lfu" else LRU()
    planner = Planner(rows=rows, slots=int(rows * ratio), policy=made)
    planner.warm_up()
    return planner


def planned(planner: Planner, batches: Sequence[Ids], look_ahead: int) -> Iterator[Plan]:
    """The plans of batches that are announced so many ahead."""
    for at, batch in enumerate(batches):
        planner.announce(batch, changes=True)
        if at >= look_ahead:
            yield planner.plan()
    while planner.announced:
        yield planner.plan()
