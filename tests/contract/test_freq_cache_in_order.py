"""Rows that leave and come back, a step later or hundreds of steps long, lose no update."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from foretold import AnywherePinned
from plain_training import PlainTraining
from scenes import batch_of, spec_of, table, train
from torch import Tensor
from torchrec import KeyedJaggedTensor

from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier, SlowTier


def test_row_evicted_and_wanted_next_batch_is_served_fresh(device: torch.device) -> None:
    tables = (table("rows", 4, 4),)
    cache, spec = spec_of("freq_cache[policy=lfu]", device=device, tables=tables, budget=CacheRatio(ratio=0.25))
    full, full_spec = spec_of("full_gpu", device=device, tables=tables)
    ours, theirs = cache(spec), full(full_spec)
    for step, row in enumerate([0, 1, 0, 2, 0, 3, 3, 0]):
        batch = batch_of({"rows": [[row, row]]})
        torch.testing.assert_close(train(ours, batch, step), train(theirs, batch, step))
    found = ours.counters()
    assert (found.unique_misses, found.rows_written_back) == (7, 6)


@pytest.mark.parametrize("tier", [HostTier, PinnedTier, FileTier])
def test_rows_on_their_way_back_are_fetched_when_they_are_home(
    tier: type[SlowTier], device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slot and a tier slow to write: every row was evicted by the batch before, or went past the slot."""
    cached = AnywherePinned(
        (table("rows", 4, 4),),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
        cache_ratio=0.25,
        look_ahead=1,
        device=device,
        directory=tmp_path if tier is FileTier else None,
        pinned=tier is PinnedTier,
        seed=None,
    )
    write = tier.write

    def late(self: SlowTier, rows: Tensor, records: Tensor) -> None:
        time.sleep(0.03)
        write(self, rows, records)

    monkeypatch.setattr(tier, "write", late)
    times = [0, 0, 0, 0]
    for rows in ([0, 1, 2], [2], [1], [2], [1], [0, 2], [0], [2]):
        batch = batch_of({"rows": [rows]})
        cached.prefetch(batch)
        pooled = cached(batch).values()
        pooled.sum().backward()
        assert torch.equal(pooled.detach().cpu(), torch.full((1, 4), -1.0 * sum(times[row] for row in rows)))
        for row in rows:
            times[row] += 1


TABLES = (table("users", 300, 8, "clicked", "bought"), table("colours", 150, 4), table("shops", 100, 8))
IDS = {"clicked": 300, "bought": 300, "colours": 150, "shops": 100}
SLOTS = 0.1
"""Of 400 rows of width 8 and 150 of width 4; a batch has at most 24 and 8."""
BATCH = 8
OPTIMIZER = SparseOptimizer(kind=OptimizerKind.SGD, lr=2.0**-6)


def batches(steps: int) -> Iterator[KeyedJaggedTensor]:
    """One id per bag. Half of the ids go through the table in turn, and were evicted since they last came."""
    draw = torch.Generator().manual_seed(0)
    for step in range(steps):
        ids = torch.stack([(torch.rand(BATCH, generator=draw) ** 3 * rows).long() for rows in IDS.values()])
        for row, rows in enumerate(IDS.values()):
            ids[row, : BATCH // 2] = (torch.arange(BATCH // 2) + step * BATCH // 2) % rows
        yield KeyedJaggedTensor(list(IDS), ids.flatten(), lengths=torch.ones(ids.numel(), dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["host", "file", "ram"])
def test_many_steps_that_evict_leave_the_rows_of_plain_training(
    tier: str, device: torch.device, tmp_path: Path
) -> None:
    """All numbers are small multiples of a power of two: no sum is rounded, plain training is met bit for bit."""
    steps = 400 if "CI" in os.environ else 1_000
    plain = PlainTraining(TABLES, OPTIMIZER)
    plain.weights = {name: (weights * 8).round() / 8 for name, weights in plain.weights.items()}
    cached = CachedEmbeddingBagCollection(
        TABLES,
        optimizer=OPTIMIZER,
        cache_ratio=SLOTS,
        policy="lfu",
        look_ahead=4,
        device=device,
        batch_lookups=32,
        directory=None if tier == "host" else tmp_path,
        ram_bytes=20_000 if tier == "ram" else 0,
    )
    plain.start(cached)
    gradients = torch.Generator().manual_seed(1)
    evicting = 0
    for step, batch in enumerate(cached.announced(batches(steps))):
        before = cached.counters().rows_written_back
        pooled = cached(batch).values()
        gradient = torch.randint(-2, 3, tuple(pooled.shape), generator=gradients).float()
        (pooled * gradient.to(device)).sum().backward()
        assert torch.equal(pooled.detach().cpu(), plain.step(batch, gradient).float()), f"step {step}"
        evicting += cached.counters().rows_written_back > before
    assert evicting > 0.99 * steps - 20
    assert cached.counters().overflow_batches == 0
    for name, weights in plain.weights.items():
        assert torch.equal(cached.read_rows(name, torch.arange(weights.shape[0])).weights, weights.float()), name
