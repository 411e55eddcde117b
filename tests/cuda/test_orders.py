"""On a device that does all work late, in each order that events allow, training with the cache is plain training."""

import functools
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from suite.run.cell.feed import DevicePrefetcher
from systems.contract import CacheRatio
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.cache.mover import Writer
from systems.freq_cache.cache.staging import EvictStaging, FetchStaging, Transfer
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier, RowLayout
from tests.contract.scenes import assert_same, build, snapshot
from tests.faults import freq_cache_training as plain
from workloads.batch import Batch

if "VCUDA_LATE" not in os.environ:
    pytest.skip("needs the virtual CUDA device, late: make test-virtual-cuda", allow_module_level=True)

import virtual_streams

DEVICE = torch.device("cuda")
STEPS = 12
TIERS: dict[str, dict[str, Any]] = {
    "host": {},
    "pinned": {"pinned": True},
    "exchanged": {"pinned": True, "copy_engine": "device"},
    "file": {},
    "ram": {"ram_bytes": 2000},
}
plain_after = functools.cache(plain.plain_after)
TIER = pytest.mark.parametrize("tier", TIERS)


@pytest.fixture(autouse=True, params=(0, 1, 2, 3, 4, 5, 6, 8))
def order(request: pytest.FixtureRequest) -> Iterator[int]:
    """Which of the device's streams are late: every case but none of them; and all, but going on by chance."""
    virtual_streams.draw(request.param)
    yield request.param
    torch.cuda.synchronize()
    assert not virtual_streams.failures


def started(tier: str, folder: Path, *, device: str = "cuda", **choices: Any) -> CachedEmbeddingBagCollection:
    directory = {"directory": folder / tier} if tier in {"file", "ram"} else {}
    return plain.started(device=device, **TIERS[tier], **directory, **choices)


def learn(pooled: Tensor, step: int) -> None:
    """The host does not wait, which a copy from pageable memory would make it do."""
    gradient = plain.gradient(step, pooled)
    if pooled.is_cuda:
        gradient = gradient.pin_memory().to(pooled.device, non_blocking=True)
    (pooled * gradient).sum().backward()


def trained(collection: CachedEmbeddingBagCollection, steps: int = STEPS) -> dict[str, Tensor]:
    """Train as many batches, announced as far ahead as may be, and look at a number now and then. All rows."""
    tables = tuple(collection.spec.tables)
    for step, features in enumerate(collection.announced(plain.batch(step, tables) for step in range(steps))):
        values = collection(features).values()
        learn(values, step)
        if step % 3 == 2:
            values.sum().item()
    return snapshot(collection)


@TIER
@pytest.mark.parametrize(("look_ahead", "lookups"), [(0, 32), (4, 32), (4, 1)])
def test_batches_with_room_in_staging_and_without(tier: str, look_ahead: int, lookups: int, tmp_path: Path) -> None:
    collection = started(tier, tmp_path, look_ahead=look_ahead, batch_lookups=lookups)
    assert_same(trained(collection), plain_after(STEPS))
    assert collection.counters().rows_written_back > 0


@TIER
@pytest.mark.parametrize(("cache_ratio", "look_ahead"), [(0.04, 0), (0.07, 4)])
def test_batches_larger_than_the_cache(tier: str, cache_ratio: float, look_ahead: int, tmp_path: Path) -> None:
    """All of them, or one now and then."""
    collection = started(tier, tmp_path, cache_ratio=cache_ratio, look_ahead=look_ahead)
    assert_same(trained(collection), plain_after(STEPS))
    assert collection.counters().overflow_batches > 0


@pytest.mark.parametrize("tier", ["host", "exchanged"])
def test_rows_that_move_on_another_stream_wait_for_training(tier: str, tmp_path: Path) -> None:
    """A pipeline announces on the stream of its copies, and a loop that was left early has batches to forget."""
    collection, left = started(tier, tmp_path, look_ahead=4), STEPS // 2
    for step, features in enumerate(collection.announced(plain.batch(step) for step in range(STEPS))):
        learn(collection(features).values(), step)
        if step == left - 1:
            break
    coming = [plain.batch(step) for step in range(left, STEPS)]
    with torch.cuda.stream(torch.cuda.Stream()):
        collection.prefetch(coming[0])
    for step, features in enumerate(coming, left):
        learn(collection(features).values(), step)
    assert_same(snapshot(collection), plain_after(STEPS))


@pytest.mark.parametrize("tier", ["host", "pinned", "file"])
def test_a_slow_writer(tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Writer._store

    def late(self: Writer, last: Any) -> None:
        time.sleep(0.01)
        store(self, last)

    monkeypatch.setattr(Writer, "_store", late)
    collection = started(tier, tmp_path, look_ahead=4)
    assert_same(trained(collection), plain_after(STEPS))


def test_a_slow_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = HostTier.read

    def late(self: HostTier, rows: Tensor, out: Tensor) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.01)
        read(self, rows, out)

    collection = started("host", tmp_path, look_ahead=4)
    monkeypatch.setattr(HostTier, "read", late)
    assert_same(trained(collection), plain_after(STEPS))


def test_a_send_that_fails_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = HostTier.read, [0]

    def sometimes(self: HostTier, rows: Tensor, out: Tensor) -> None:
        reads[0] += 1
        if reads[0] % 3 == 0:
            raise OSError("the third read fails")
        read(self, rows, out)

    collection = started("host", tmp_path, look_ahead=4)
    monkeypatch.setattr(HostTier, "read", sometimes)
    for step, features in enumerate(collection.announced(plain.batch(step) for step in range(STEPS))):
        for attempt in range(5):
            try:
                values = collection(features).values()
                break
            except OSError:
                assert attempt < 4
        learn(values, step)
    monkeypatch.setattr(HostTier, "read", read)
    assert_same(snapshot(collection), plain_after(STEPS))


@TIER
def test_tables_of_two_widths(tier: str, tmp_path: Path) -> None:
    collection = started(tier, tmp_path, tables=plain.TWO_WIDTHS, look_ahead=2)
    assert_same(trained(collection), plain.plain_after(STEPS, plain.TWO_WIDTHS))


@pytest.mark.parametrize(("tier", "rows"), [("host", "int8"), ("file", "fp16")])
def test_slow_rows_of_other_types(tier: str, rows: str, tmp_path: Path) -> None:
    ours = trained(started(tier, tmp_path / "ours", look_ahead=2, slow_rows=rows))
    assert_same(ours, trained(started(tier, tmp_path / "theirs", look_ahead=2, slow_rows=rows, device="cpu")))


@TIER
def test_several_lookups_for_one_backward(tier: str, tmp_path: Path) -> None:
    def steps(collection: CachedEmbeddingBagCollection) -> dict[str, Tensor]:
        for step in range(0, STEPS, 2):
            pair = [collection(plain.batch(at)).values() for at in (step, step + 1)]
            loss = sum((p * plain.gradient(step + at, p).to(p.device)).sum() for at, p in enumerate(pair))
            assert isinstance(loss, Tensor)
            loss.backward()
        return snapshot(collection)

    choices = {"lookups_per_backward": 2, "cache_ratio": 0.3}
    ours = steps(started(tier, tmp_path, **choices))
    assert_same(ours, steps(started("host", tmp_path, device="cpu", **choices)))


@TIER
def test_a_collection_that_is_dropped_while_the_device_works_on_its_rows(tier: str, tmp_path: Path) -> None:
    collection = started(tier, tmp_path / "first", look_ahead=4)
    for step, features in enumerate(collection.announced(plain.batch(step) for step in range(4))):
        values = collection(features).values()
        if step < 3:
            learn(values, step)
    expected = _pooled_after(3)
    del collection, features
    gc.collect()
    trained(started(tier, tmp_path / "second", look_ahead=4), 4)  # in the memory that was given back
    torch.testing.assert_close(values.detach().cpu(), expected, rtol=0, atol=0)


def _pooled_after(steps: int) -> Tensor:
    training = plain.Plain()
    training.train(range(steps))
    return training.pooled(plain.batch(steps)).float()


def test_batches_copied_ahead() -> None:
    """The harness's own copies, of more than there is time for."""
    device, many = torch.device("cuda"), 64
    made = [
        Batch(
            torch.full((many, 8), float(step)).pin_memory(),
            plain.batch(step).pin_memory(),
            torch.full((many,), float(step)).pin_memory(),
        )
        for step in range(STEPS)
    ]

    class Feed:
        def __init__(self) -> None:
            self.at = 0

        def fill(self, count: int) -> None: ...

        def take(self) -> Batch:
            self.at += 1
            return made[self.at - 1]

    delivery = DevicePrefetcher(Feed(), total=STEPS, device=device, ids_on_host=False)
    delivery.fill(STEPS)
    sums = []
    for step in range(STEPS):
        batch = delivery.take()
        sums.append((step, batch.dense.sum(), batch.labels.sum(), batch.features.values().sum()))
        del batch
    for step, dense, labels, ids in sums:
        assert (dense.item(), labels.item()) == (step * many * 8, step * many)
        assert ids.item() == plain.batch(step).values().sum().item()


@TIER
def test_batches_that_are_only_looked_up(tier: str, tmp_path: Path) -> None:
    """Nothing is written back, so nothing makes the host wait."""
    collection, rows = started(tier, tmp_path, look_ahead=2), plain.Plain()
    with torch.no_grad():
        announced = collection.announced(plain.batch(step) for step in range(STEPS))
        pooled = [collection(features).values() for features in announced]
    for step, values in enumerate(pooled):
        assert torch.equal(values.cpu(), rows.pooled(plain.batch(step)).float())


def test_numbers_that_are_sent_faster_than_they_arrive() -> None:
    transfer = Transfer(torch.device("cuda"))
    sent = [transfer.pack(np.full(100, number, np.int32)) for number in range(12)]
    for number, arrival in enumerate(sent):
        assert arrival.take(transfer.compute())[0].tolist() == [number] * 100


LAYOUT = RowLayout(4, torch.float32, {})


def filled(tier: HostTier) -> HostTier:
    tier.records.copy_(torch.arange(tier.records.numel()).view(tier.records.shape))
    return tier


@pytest.mark.parametrize("pinned", [False, True])
def test_staging_that_is_given_back_while_the_device_uses_it(pinned: bool) -> None:
    transfer, rows = Transfer(DEVICE), torch.arange(64)
    tier = filled(PinnedTier(64, LAYOUT, DEVICE) if pinned else HostTier(rows=64, layout=LAYOUT))
    entry = FetchStaging(64, tier, transfer)
    with transfer.incoming:
        numbers = rows.int().to(DEVICE)
    entry.add(rows, numbers, place=0)
    used = entry.take(64, transfer.compute()).clone()
    del entry
    with transfer.incoming:
        LAYOUT.empty(64, device=DEVICE).fill_(-1)
    assert torch.equal(used.cpu(), tier.records)


def test_a_tensor_that_is_given_back_while_it_leaves() -> None:
    transfer = Transfer(DEVICE)
    leaving = transfer.to_host(torch.full((64, 4), 1.0, device=DEVICE))
    torch.full((64, 4), -1.0, device=DEVICE)
    assert leaving.wait().unique().tolist() == [1.0]


def test_rows_that_are_read_while_the_device_writes_them_home() -> None:
    transfer, tier = Transfer(DEVICE), PinnedTier(64, LAYOUT, DEVICE, by_kernel=True)
    place, entry, rows = EvictStaging(64, LAYOUT, transfer), FetchStaging(64, tier, transfer), torch.arange(64)
    compute = transfer.compute()
    (numbers,) = transfer.pack(rows.int().numpy()).take(compute)
    place.scatter(place.room(64, compute).fill_(1), tier, numbers, compute)
    entry.add(rows, numbers, place=0)
    assert entry.take(64, transfer.compute()).unique().tolist() == [1.0]


@pytest.mark.parametrize("given_back", ["records", "numbers"])
def test_what_is_given_back_while_the_device_writes_it_home(given_back: str) -> None:
    transfer, tier = Transfer(DEVICE), PinnedTier(64, LAYOUT, DEVICE, by_kernel=True)
    place, arrival = EvictStaging(64, LAYOUT, transfer), transfer.pack(np.arange(64, dtype=np.int32))
    compute = transfer.compute()
    numbers = arrival.take(compute)[0]
    torch.cuda.current_stream().synchronize()
    written = place.scatter(place.room(64, compute).fill_(1), tier, numbers, compute).event
    assert written is not None
    if given_back == "records":
        del place
        later = LAYOUT.empty(64, device=DEVICE).fill_(-1)
    else:
        del arrival, numbers
        later = transfer.pack(np.full(64, 63, dtype=np.int32)).tensors[0]
    written.synchronize()
    assert tier.records.unique().tolist() == [1.0]
    del later


@pytest.mark.parametrize(
    "variant",
    [
        "fbgemm_uvm_caching[memory=host_mapped,prefetch=on]",
        "torchrec_uvm_caching[memory=host_mapped,prefetch=on]",
        "torchrec_uvm_caching[memory=host_mapped]",
        "torchrec_uvm[memory=host_mapped]",
    ],
)
def test_rows_of_batches_that_fbgemm_and_torchrec_read_ahead(variant: str) -> None:
    """Batches are copied ahead, announced while the one before is trained, and evict rows that it changed."""
    system = build(variant, device=DEVICE, tables=plain.TABLES, budget=CacheRatio(ratio=0.2), batch_lookups=32)
    plain.Plain().start(system)
    copies, coming = torch.cuda.Stream(), deque[KeyedJaggedTensor]()
    for step in range(STEPS + 1):
        if step < STEPS:
            with torch.cuda.stream(copies):
                coming.append(plain.batch(step).pin_memory().to(DEVICE, non_blocking=True))
            system.prefetch_behind(coming[-1], copies.record_event())
        if step:
            features = coming.popleft()
            features.record_stream(torch.cuda.current_stream())
            learn(system(features).values(), step - 1)
    assert_same(snapshot(system), plain_after(STEPS))
