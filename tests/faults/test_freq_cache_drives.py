"""The cache when its drive is full, fails or is slow."""

import errno
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from torch import Tensor

from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.cache.mover import WriteBackFailed
from tests.contract.scenes import assert_same, snapshot
from tests.faults.drives import file_size_limit
from tests.faults.freq_cache_training import (
    LOOK_AHEAD,
    batch,
    built,
    learn,
    plain_after,
    started,
    train,
)


def watched(before: Callable[[str], None], **choices: object) -> CachedEmbeddingBagCollection:
    """A collection whose slow tier calls something before every read and write: it may raise, or take its time."""
    collection = started(**choices)

    def after(operation: str, original: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor], None]:
        def call(rows: Tensor, records: Tensor) -> None:
            before(operation)
            original(rows, records)

        return call

    tier = collection.caches[0].tier
    for operation in ("read", "write"):
        setattr(tier, operation, after(operation, getattr(tier, operation)))
    return collection


class Disk:
    """A disk that refuses reads or writes while it is `full`, the next ones excepted that it still has `room` for."""

    def __init__(self, *, refuses: str = "write") -> None:
        self.refuses = refuses
        self.full = False
        self.room = 0

    def __call__(self, operation: str) -> None:
        if self.full and operation == self.refuses:
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def steps_until_failure(collection: CachedEmbeddingBagCollection, first: int) -> int:
    """Train, nothing announced, until the slow tier fails. Returns the step whose batch was not looked up."""
    for step in range(first, first + 20):
        try:
            pooled = collection(batch(step)).values()
        except WriteBackFailed as error:
            assert isinstance(error.__cause__, OSError)
            return step
        learn(pooled, step)
    raise AssertionError("the slow tier never failed")


RATIO = pytest.mark.parametrize("ratio", [0.1, 0.02], ids=["batches fit", "batches overflow"])


@LOOK_AHEAD
@RATIO
def test_full_disk_surfaces_in_training_and_loses_nothing(look_ahead: int, ratio: float) -> None:
    disk = Disk()
    collection = watched(disk, look_ahead=look_ahead, cache_ratio=ratio)
    train(collection, range(5))
    disk.full = True
    done = steps_until_failure(collection, 5)
    with pytest.raises(WriteBackFailed) as caught:
        collection.flush()
    assert caught.value.__cause__.errno == errno.ENOSPC
    disk.full = False
    collection.flush()
    assert_same(snapshot(collection), plain_after(done))
    train(collection, range(done, done + 5))
    assert_same(snapshot(collection), plain_after(done + 5))


@LOOK_AHEAD
def test_file_that_may_not_grow_surfaces_in_training_and_loses_nothing(tmp_path: Path, look_ahead: int) -> None:
    collection = started(directory=tmp_path, look_ahead=look_ahead)
    train(collection, range(5))
    with file_size_limit((tmp_path / "cache_0" / "rows.bin").stat().st_size + 13):
        done = steps_until_failure(collection, 5)
        with pytest.raises((WriteBackFailed, OSError)):
            collection.flush()
        with pytest.raises((WriteBackFailed, OSError)):
            collection.commit()
    collection.flush()
    assert_same(snapshot(collection), plain_after(done))
    train(collection, range(done, done + 5))
    collection.commit()
    collection.close()
    again = built(directory=tmp_path)
    assert_same(snapshot(again), plain_after(done + 5))
    again.close()


@pytest.mark.parametrize("refuses", ["read", "write"])
@pytest.mark.parametrize("room", range(8))
def test_flush_that_fails_leaves_announced_batches_to_be_trained(refuses: str, room: int) -> None:
    disk = Disk(refuses=refuses)
    collection = watched(disk, look_ahead=2)
    train(collection, range(5))
    coming = {step: batch(step) for step in range(5, 8)}
    disk.full, disk.room = True, room
    for features in coming.values():
        collection.prefetch(features)
    with suppress(WriteBackFailed, OSError):
        collection.flush()
    disk.full = False
    for step, features in coming.items():
        learn(collection(features).values(), step)
    assert_same(snapshot(collection), plain_after(8))


@LOOK_AHEAD
@RATIO
def test_read_that_fails_is_repeated_with_the_same_batch(look_ahead: int, ratio: float) -> None:
    disk = Disk(refuses="read")
    collection = watched(disk, look_ahead=look_ahead, cache_ratio=ratio)
    train(collection, range(5))
    disk.full = True
    features = batch(5)
    if look_ahead:
        collection.prefetch(features)
    with pytest.raises(OSError, match="No space left"):
        collection(features)
    disk.full = False
    learn(collection(features).values(), 5)
    train(collection, range(6, 9))
    assert_same(snapshot(collection), plain_after(9))


def test_save_to_a_full_disk_keeps_the_old_checkpoint_and_succeeds_once_there_is_space(tmp_path: Path) -> None:
    collection = started()
    train(collection, range(3))
    collection.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    train(collection, range(3, 5))
    for size_bytes in (0, 1000, 100 * 32 + 13):
        with file_size_limit(size_bytes), pytest.raises(OSError, match="File too large"):
            collection.save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    again = built()
    again.load(tmp_path)
    assert_same(snapshot(again), plain_after(3))
    collection.save(tmp_path)
    again.load(tmp_path)
    assert_same(snapshot(again), plain_after(5))


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 5])
def test_slow_disk_changes_no_bit(look_ahead: int) -> None:
    times = random.Random(look_ahead)
    collection = watched(lambda _: time.sleep(times.uniform(0, 0.006)), look_ahead=look_ahead)
    train(collection, range(30))
    assert_same(snapshot(collection), plain_after(30))
