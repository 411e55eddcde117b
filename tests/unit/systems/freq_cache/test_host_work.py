"""What the host does for a batch: once, ahead where that pays, and counted where training waits for it."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache import LRU, arguments, pipeline, sizing
from systems.freq_cache.cache import plan
from systems.freq_cache.compiled import in_parts
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.slow_tier import HostTier
from systems.threads import Worker
from tests.faults.freq_cache_training import batch, built, learn, started


def test_batches_are_announced_ahead_on_cuda_alone_if_nobody_says() -> None:
    assert [arguments.usual_look_ahead(device) for device in ("cpu", "cuda", torch.device("cuda:1"))] == [0, 4, 4]
    assert built().look_ahead == 0


def test_time_that_training_spends_on_plans_reads_and_writes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, reads=0, writes=0)
    clock.perf_counter = lambda: clock.now

    class Slow(LRU):
        def keys(self, rows, occurrences, *, batch, learn):
            clock.now += 2.0
            return super().keys(rows, occurrences, batch=batch, learn=learn)

    read, write = HostTier.read, HostTier.write

    def slow_read(tier: HostTier, rows: Tensor, out: Tensor) -> None:
        clock.now += 0.5
        clock.reads += 1
        read(tier, rows, out)

    def slow_write(tier: HostTier, rows: Tensor, records: Tensor) -> None:
        clock.now += 0.25
        clock.writes += 1
        write(tier, rows, records)

    monkeypatch.setattr(HostTier, "read", slow_read)
    monkeypatch.setattr(HostTier, "write", slow_write)
    for module in (pipeline, plan):
        monkeypatch.setattr(module, "time", clock)
    collection = started(policy=lambda rows: Slow())
    clock.writes = 0
    for step in range(5):
        learn(collection(batch(step)).values(), step)
    counters = collection.counters()
    assert (counters.planning_wait_s, counters.fetch_wait_s) == (10.0, 0.5 * clock.reads)
    assert counters.write_back_wait_s == 0.25 * clock.writes > 0
    assert counters.late_batches == 5  # staging has no room for all rows that they miss


@pytest.mark.cuda
def test_records_on_their_way_have_the_room_that_the_account_says(device: torch.device) -> None:
    collection = started(look_ahead=2, batch_lookups=80, device=device)
    (cache,) = collection.caches
    mover = cache.mover
    taken = sum(place.nbytes for place in (*(entry._device for entry in mover._entries), mover._exit._device))
    assert taken == 3 * sizing.staging_rows(collection.spec, cache.pool.slots) * cache.tier.layout.record_bytes
    assert cache.memory()[Tier.DEVICE, MemoryUse.STAGING] == taken


def test_a_thread_of_the_cache_reads_rows_with_others_and_each_in_its_place() -> None:
    tier = HostTier(rows=50_000, layout=RowLayout(8, torch.float32, {}))
    tier.records.copy_(torch.arange(400_000, dtype=torch.float32).view(50_000, 8))
    rows, out = torch.randperm(50_000)[:20_001], torch.zeros(20_001, 8)
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    worker = Worker("cache-test")
    torch.set_num_threads(before)
    with patch("systems.freq_cache.compiled.in_parts", wraps=in_parts) as shared:
        worker.submit(lambda: tier.read(rows, out)).result()
    worker.close()
    assert shared.call_args.args[1] == 4  # a quarter of the cores
    assert torch.equal(out, tier.records[rows])
