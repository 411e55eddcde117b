"""What the host does for a batch: once, ahead where that pays, and counted where training waits for it."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from numba.core.dispatcher import Dispatcher
from torch import Tensor

from systems.contract import MemoryUse, Tier
from systems.freq_cache import LRU, arguments, pipeline, sizing
from systems.freq_cache.cache import cache, loops, mover, plan
from systems.freq_cache.cache import policy as policy_module
from systems.freq_cache.tiers.slow_tier import HostTier
from tests.conftest import CORES
from tests.contract.scenes import batch_of, table
from tests.faults.freq_cache_training import TABLES, batch, built, learn, started, train


def test_batches_are_announced_ahead_on_cuda_alone_if_nobody_says() -> None:
    assert [arguments.usual_look_ahead(device) for device in ("cpu", "cuda", torch.device("cuda:1"))] == [0, 4, 4]
    assert built().look_ahead == 0


def test_cache_has_threads_only_where_they_have_a_core_or_wait_for_a_drive(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"cache-planning", "cache-sending", "cache-writing"}
    if device.type != "cpu":
        names.add("cache-finding")

    def threads(**choices: object) -> bool:
        before = set(threading.enumerate())  # those of other tests, which nobody collected yet
        collection = started(device=device, **choices)
        found = {thread.name for thread in threading.enumerate() if thread not in before} & names
        assert collection.threads == len(found)
        collection.close()
        return found == names

    torch.set_num_threads(CORES)
    assert threads(look_ahead=2) is (device.type != "cpu")
    assert threads(look_ahead=2, directory=tmp_path)
    assert not threads(look_ahead=0, directory=tmp_path)
    torch.set_num_threads(CORES - 1)
    assert threads(look_ahead=2)
    assert not threads(look_ahead=0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(CORES))
    assert threads(look_ahead=2) is (device.type != "cpu")


@pytest.mark.parametrize("policy", ["static", "lfu", "lru"])
def test_planning_a_batch_gives_pythons_lock_back_few_times(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled loop does: the training thread gets the lock, and waits asleep when the planning thread wants it."""
    frequencies = {one.name: torch.arange(one.num_embeddings) for one in TABLES} if policy == "static" else None
    collection, calls = started(policy=policy, frequencies=frequencies, cache_ratio=0.4), []
    batches = [batch_of({"users": [[7 * step]], "from": [[step]], "to": [[step]]}) for step in range(40)]
    warm, rest = batches[:30], batches[30:]
    for step, features in enumerate(warm):  # compiles the loops
        learn(collection(features).values(), step)

    def counted(loop: Dispatcher) -> Callable[..., object]:
        return lambda *arguments: calls.append(loop) or loop(*arguments)

    for module in (loops, plan, policy_module):
        for name, loop in list(vars(module).items()):
            if isinstance(loop, Dispatcher):
                monkeypatch.setattr(module, name, counted(loop))
    for step, features in enumerate(rest):
        learn(collection(features).values(), step)
    assert 5 <= len(calls) / len(rest) <= 7  # one of them is the sending thread's


@pytest.mark.parametrize(("look_ahead", "cache_ratio"), [(0, 0.1), (4, 0.1), (4, 0.04)])
def test_time_that_training_spends_on_plans_reads_and_writes_is_counted(
    look_ahead: int, cache_ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(CORES)
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
    for module in (pipeline, mover, cache):
        monkeypatch.setattr(module, "time", clock)
    collection = started(policy=lambda rows: Slow(), look_ahead=look_ahead, cache_ratio=cache_ratio)
    clock.writes = 0
    train(collection, range(5))
    counters = collection.counters()
    assert (counters.planning_wait_s, counters.fetch_wait_s) == (10.0, 0.5 * clock.reads)
    assert counters.write_back_wait_s == 0.25 * clock.writes > 0
    assert counters.overflow_batches == (0 if cache_ratio == 0.1 else 5)
    assert counters.late_batches == 5 or counters.overflow_batches  # staging has no room for all rows that they miss


@pytest.mark.cuda
def test_records_on_their_way_have_the_room_that_the_account_says(device: torch.device) -> None:
    collection = started(look_ahead=2, batch_lookups=80, device=device)
    (cache,) = collection.caches
    mover = cache.mover
    taken = sum(place.nbytes for place in (*(entry._device for entry in mover._entries), mover._exit._device))
    assert taken == 3 * sizing.staging_rows(collection.spec, cache.pool.slots) * cache.tier.layout.record_bytes
    assert cache.memory()[Tier.DEVICE, MemoryUse.STAGING] == taken


def test_few_batches_wait_to_be_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has ten rows that none had before, so no row is waited for."""
    collection = built((table("rows", 1000, 8),), look_ahead=1, cache_ratio=0.02)
    (cache,) = collection.caches
    gate, evict = threading.Event(), cache.tier.evict

    def gated(rows: Tensor, records: Tensor) -> None:
        assert gate.wait(10)
        evict(rows, records)

    monkeypatch.setattr(cache.tier, "evict", gated)
    threading.Timer(0.1, gate.set).start()
    waiting = []
    batches = [batch_of({"rows": [[10 * step + at] for at in range(10)]}) for step in range(100)]
    for step, features in enumerate(collection.announced(batches)):
        learn(collection(features).values(), step)
        waiting.append(cache.writer.pending_bytes)
    assert 0 < max(waiting) <= 4 * 10 * cache.tier.layout.record_bytes


def test_slots_reach_fbgemm_in_64_bits_so_that_its_sort_keys_do_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    collection, given = started(), []
    tbe = collection.caches[0].pool._tbe
    forward = tbe.forward
    monkeypatch.setattr(tbe, "forward", lambda slots, *rest: given.append(slots.dtype) or forward(slots, *rest))
    one_id_a_bag = {"users": [[3], [0]], "from": [[1], [1]], "to": [[7], [2]]}
    for features in (batch(0), batch_of(one_id_a_bag)):
        learn(collection(features).values(), 0)
    assert given == [torch.int64, torch.int64]
