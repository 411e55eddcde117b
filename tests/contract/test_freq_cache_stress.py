"""Hundreds of steps in which every one evicts, planned and written back on threads beside training, lose no update.

All numbers are small multiples of a power of two, so no sum is rounded and plain training is met bit for bit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from plain_training import PlainTraining
from scenes import table
from torchrec import KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("tier", ["host", "file", "ram"])
def test_many_steps_that_evict_leave_the_rows_of_plain_training(
    tier: str, device: torch.device, tmp_path: Path
) -> None:
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
