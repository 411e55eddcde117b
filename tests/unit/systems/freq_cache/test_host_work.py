"""What the host does for a batch: once, ahead where that pays, and counted where training waits for it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from systems.features import FeatureGroups
from systems.freq_cache import LRU, arguments, pipeline
from systems.freq_cache.cache import plan
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.tiers.slow_tier import HostTier
from tests.contract.scenes import batch_of
from tests.faults.freq_cache_training import TWO_WIDTHS, batch, built, learn, started


def test_batches_are_announced_ahead_on_cuda_alone_if_nobody_says() -> None:
    assert [arguments.usual_look_ahead(device) for device in ("cpu", "cuda", torch.device("cuda:1"))] == [0, 4, 4]
    assert built().look_ahead == 0


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_features_of_a_batch_are_split_among_caches_once(look_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    split, seen = FeatureGroups.split, []

    def counted(groups: FeatureGroups, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        seen.append(features)
        return split(groups, features)

    monkeypatch.setattr(FeatureGroups, "split", counted)
    collection = started(TWO_WIDTHS, look_ahead=look_ahead)
    coming = [batch(step, TWO_WIDTHS) for step in range(6)]
    for step, features in enumerate(collection.announced(coming)):
        learn(collection(features).values(), step)
    assert len(seen) == 6


@pytest.mark.parametrize(("bags", "sent"), [([[1], [2], [0]], 0), ([[1, 2], [], [0]], 1), ([[], [], []], 1)])
def test_offsets_are_sent_where_bags_have_not_one_id_each(
    bags: list[list[int]], sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, given = SlotTable.look_up, []

    def watched(pool: SlotTable, slots: Tensor, offsets: Tensor | None, *more: Any) -> Tensor:
        given.append(offsets)
        return look_up(pool, slots, offsets, *more)

    monkeypatch.setattr(SlotTable, "look_up", watched)
    collection = started()
    pooled = collection(batch_of({"users": bags, "from": bags, "to": bags})).values()
    assert pooled.shape == (3, 24)
    assert [offsets is not None for offsets in given] == [bool(sent)]


def test_time_that_training_spends_on_plans_and_reads_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, reads=0)
    clock.perf_counter = lambda: clock.now

    class Slow(LRU):
        def keys(self, rows, occurrences, *, batch, learn):
            clock.now += 2.0
            return super().keys(rows, occurrences, batch=batch, learn=learn)

    read = HostTier.read

    def slow_read(tier: HostTier, rows: Tensor, out: Tensor) -> None:
        clock.now += 0.5
        clock.reads += 1
        read(tier, rows, out)

    monkeypatch.setattr(HostTier, "read", slow_read)
    for module in (pipeline, plan):
        monkeypatch.setattr(module, "time", clock)
    collection = started(policy=lambda rows: Slow())
    for step in range(5):
        learn(collection(batch(step)).values(), step)
    counters = collection.counters()
    assert (counters.planning_wait_s, counters.fetch_wait_s) == (10.0, 0.5 * clock.reads)
    assert counters.late_batches == 5  # staging has no room for all rows that they miss
