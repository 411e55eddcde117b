"""What crosses to a device and back, on a CPU and on a device that does everything as late as it may."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from systems.contract import MemoryUse, Tier
from systems.freq_cache import sizing
from systems.freq_cache.cache import staging
from systems.freq_cache.cache.staging import EvictStaging, FetchStaging, Transfer
from systems.freq_cache.tiers.layout import RowLayout
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier
from tests.contract.scenes import assert_same, snapshot
from tests.faults.freq_cache_training import batch, learn, plain_after, started
from tests.unit.systems.freq_cache import lazy_device

CPU = torch.device("cpu")
LAYOUT = RowLayout(4, torch.float32, {"sum": 1})


@pytest.fixture(params=["cpu", "lazy"])
def moves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Transfer:
    if request.param == "lazy":
        lazy_device.install(monkeypatch)
    return Transfer(CPU)


def full(tier: HostTier) -> HostTier:
    tier.records.copy_(torch.arange(tier.records.numel()).view(tier.records.shape))
    return tier


def test_packed_numbers_arrive_though_their_memory_is_used_again(moves: Transfer) -> None:
    lots = [[np.arange(n, dtype=np.int32) + 100 * lot for n in (5, 0, 3 * lot)] for lot in range(9)]
    arriving = [moves.pack(*lot) for lot in lots]
    for arrival, lot in zip(arriving, lots, strict=True):
        assert [numbers.tolist() for numbers in arrival.take()] == [numbers.tolist() for numbers in lot]


@pytest.mark.parametrize("pinned", [False, True])
def test_entry_takes_records_in_several_lots_and_again_once_it_is_cleared(moves: Transfer, pinned: bool) -> None:
    tier = full(PinnedTier(50, LAYOUT, CPU) if pinned else HostTier(rows=50, layout=LAYOUT))
    entry = FetchStaging(5, tier, moves)
    for lots in ([[3, 7], [49], [0, 1]], [[8, 9, 10, 11, 12]], [[2], [1, 3]]):
        held = 0
        for rows in lots:
            entry.add(torch.tensor(rows), torch.tensor(rows, dtype=torch.int32), place=held)
            held += len(rows)
        assert torch.equal(entry.take(held), tier.records[[row for rows in lots for row in rows]])
        entry.clear()


def test_what_leaves_is_not_overwritten_by_what_leaves_next(moves: Transfer) -> None:
    leaving = EvictStaging(3, LAYOUT, moves)
    sent = [leaving.send(leaving.room(rows).fill_(rows)) for rows in (3, 1, 2)]
    for departure, rows in zip(sent, (3, 1, 2), strict=True):
        assert torch.equal(departure.wait(), torch.full((rows, LAYOUT.width), float(rows)))


@pytest.mark.parametrize("pinned", [False, True])
def test_staging_is_made_on_the_stream_that_writes_it_first_and_outlives_its_use_on_the_other(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else work that used the memory before it was freed would still be under way there, or work on it be cut off."""
    lazy_device.install(monkeypatch)
    moves = Transfer(CPU)
    tier = full(PinnedTier(50, LAYOUT, CPU) if pinned else HostTier(rows=50, layout=LAYOUT))
    entry, leaving = FetchStaging(2, tier, moves), EvictStaging(2, LAYOUT, moves)
    assert lazy_device.USERS[entry._device.data_ptr()] == [moves._in]
    entry.add(torch.tensor([3, 7]), torch.tensor([3, 7], dtype=torch.int32), place=0)
    taken = entry.take(2)
    assert lazy_device.USERS[taken.data_ptr()] == [moves._in, lazy_device.COMPUTE]
    room = leaving.room(2).copy_(taken)
    monkeypatch.setattr(PinnedTier, "scatter", lambda *_: None)
    leaving.scatter(room, tier, torch.tensor([3, 7])) if pinned else leaving.send(room)
    assert lazy_device.USERS[room.data_ptr()] == [lazy_device.COMPUTE, moves._out]


@pytest.mark.parametrize("tier", ["host", "pinned", "file", "ram"])
@pytest.mark.parametrize("look_ahead", [0, 4])
@pytest.mark.parametrize("batch_lookups", [1, 32])
def test_training_on_a_device_that_does_everything_late_is_plain_training(
    tier: str, look_ahead: int, batch_lookups: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lazy_device.install(monkeypatch)
    monkeypatch.setattr("systems.freq_cache.arguments.refused", lambda spec: "")
    collection = started(
        look_ahead=look_ahead,
        batch_lookups=batch_lookups,
        pinned=tier == "pinned",
        directory=tmp_path if tier in {"file", "ram"} else None,
        ram_bytes=2000 if tier == "ram" else 0,
    )
    steps = 12
    coming = [batch(step) for step in range(steps)]
    for step, features in enumerate(collection.announced(iter(coming))):
        learn(collection(features).values(), step)
    assert collection.counters().rows_written_back > 0
    assert_same(snapshot(collection), plain_after(steps))


def test_records_on_their_way_have_the_room_that_the_account_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy_device.install(monkeypatch)
    collection = started(look_ahead=2, batch_lookups=80)
    (cache,) = collection.caches
    mover = cache._batch_mover
    places = [*(entry._device for entry in mover._entries), mover._exit._device]
    taken = sum(place.nbytes for place in places)
    assert taken == 3 * sizing.staging_rows(collection.spec, cache.pool.slots) * cache.tier.layout.record_bytes
    assert cache.memory()[Tier.DEVICE, MemoryUse.STAGING] == taken
    for step, features in enumerate(collection.announced(batch(step) for step in range(6))):
        learn(collection(features).values(), step)
        now = [*(entry._device for entry in mover._entries), mover._exit._device]
        assert all(one is other for one, other in zip(now, places, strict=True))


@pytest.mark.parametrize("tier", ["host", "pinned"])
@pytest.mark.parametrize("look_ahead", [1, 4])
@pytest.mark.parametrize("room", [40, 4])
def test_training_thread_waits_for_no_event_where_staging_has_room_for_what_enters(
    tier: str, look_ahead: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less room it waits until a lot has left pinned memory, which rows that are pinned themselves do not take."""
    lazy_device.install(monkeypatch)
    monkeypatch.setattr("systems.freq_cache.arguments.refused", lambda spec: "")
    monkeypatch.setattr(sizing, "staging_rows", lambda spec, slots: room)
    collection = started(look_ahead=look_ahead, batch_lookups=32, pinned=tier == "pinned")
    for step, features in enumerate(collection.announced(batch(step) for step in range(30))):
        if step == 10:
            lazy_device.WAITS.clear()
        learn(collection(features).values(), step)
    assert collection.counters().rows_written_back > 0
    waits = lazy_device.WAITS.count(threading.get_ident())
    assert (waits > 0) == (room < 40 and tier == "host")


def test_waiting_for_the_device_is_done_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy_device.install(monkeypatch)
    moves = Transfer(CPU)
    waited = [moves.pack(np.zeros(1, np.int32)).event, moves.to_host(torch.zeros(1)).event]
    assert all(event.blocking for event in waited)
    assert staging.blocking_event(lazy_device.COMPUTE).blocking
