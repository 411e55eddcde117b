"""Rows that leave and come back a step later lose no update."""

import time
from pathlib import Path

import pytest
import torch
from foretold import AnywherePinned
from scenes import batch_of, spec_of, table, train
from torch import Tensor

from systems.contract import CacheRatio, OptimizerKind, SparseOptimizer
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
