"""The cache when its process is killed, its disk is full or slow, its planner fails, and when it is used wrongly.

Rows, gradients and learning rate are multiples of small powers of two, so that plain training is exact: equal means
equal to the last bit.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partialmethod
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from systems.contract import Anatomy, OptimizerKind, SparseOptimizer
from systems.freq_cache import LRU, CachedEmbeddingBagCollection
from systems.freq_cache.build import CacheBuilder
from systems.freq_cache.pipeline import PlanningFailed
from systems.freq_cache.tiers import file as file_tier
from systems.freq_cache.tiers.row_file import RowFile
from systems.freq_cache.tiers.slow_tier import SlowTier
from systems.freq_cache.tiers.writer import WriteBackFailed
from tests.contract.plain_training import PlainTraining
from tests.contract.scenes import assert_same, batch_of, snapshot, table

TABLES = (table("users", 300, 8), table("shops", 100, 8, "from", "to"))
TWO_WIDTHS = (table("users", 60, 8), table("shops", 40, 4))
SGD = SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5)
COMMIT_EVERY = 3


def batch(step: int, tables: tuple[Any, ...] = TABLES) -> KeyedJaggedTensor:
    """Few enough distinct rows to fit the slots, too many for those of two batches to fit."""
    draw = torch.Generator().manual_seed(step)
    features = [(name, t.num_embeddings) for t in tables for name in t.feature_names]
    return batch_of({name: torch.randint(0, rows, (5, 2), generator=draw).tolist() for name, rows in features})


def gradient(step: int, pooled: Tensor) -> Tensor:
    return torch.randint(-4, 5, pooled.shape, generator=torch.Generator().manual_seed(step)).float()


class Plain(PlainTraining):
    """Plain training from rows that are all different."""

    def __init__(self, tables: tuple[Any, ...] = TABLES) -> None:
        super().__init__(tables, SGD)
        for at, (name, weight) in enumerate(self.weights.items()):
            self.weights[name] = torch.arange(weight.numel()).view(weight.shape).double() / 8 + 1000 * at

    def train(self, steps: range) -> None:
        for step in steps:
            self.step(batch(step, self.tables), gradient(step, self.pooled(batch(step, self.tables))))

    def rows(self) -> dict[str, Tensor]:
        return {f"{name}.weight": weight.float() for name, weight in self.weights.items()}


def plain_after(steps: int, tables: tuple[Any, ...] = TABLES) -> dict[str, Tensor]:
    """All rows after steps 0 to `steps - 1`."""
    plain = Plain(tables)
    plain.train(range(steps))
    return plain.rows()


def built(tables: tuple[Any, ...] = TABLES, **more) -> CachedEmbeddingBagCollection:
    choices = {"optimizer": SGD, "cache_ratio": 0.1, "seed": None, "batch_lookups": 32, "policy": "lru", **more}
    return CachedEmbeddingBagCollection(tables, **choices)


def started(tables: tuple[Any, ...] = TABLES, **choices: object) -> CachedEmbeddingBagCollection:
    collection = built(tables, **choices)
    Plain(tables).start(collection)
    return collection


def learn(pooled: Tensor, step: int) -> None:
    (pooled * gradient(step, pooled)).sum().backward()


def train(
    collection: CachedEmbeddingBagCollection, steps: range, after: Callable[[int], None] = lambda step: None
) -> None:
    """Train with as many batches announced as may be; `after` each step."""
    batches = {step: batch(step, tuple(collection.spec.tables)) for step in steps}
    for step in steps:
        if collection.look_ahead:
            first = step == steps.start
            for ahead in range(step if first else step + collection.look_ahead, step + collection.look_ahead + 1):
                if ahead in batches:
                    collection.prefetch(batches[ahead])
        learn(collection(batches[step]).values(), step)
        after(step)


def close(collection: CachedEmbeddingBagCollection) -> None:
    """Let go of its directory, as the end of the process does."""
    for cache in collection._caches:
        cache.writer.wait()
        cache.tier.close()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file is written beyond a size, as on a full drive: writing there fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["systems.freq_cache"])


@contextmanager
def process(task: Callable[..., None], *arguments: object) -> Iterator[tuple[Any, Connection]]:
    """A process of its own, with the end of a pipe to it; it must have ended by the end of the block."""
    ours, theirs = PROCESSES.Pipe()
    child = PROCESSES.Process(target=task, args=(*arguments, theirs))
    child.start()
    theirs.close()
    try:
        yield child, ours
        child.join(60)
    finally:
        child.kill()


def rest(connection: Connection) -> list[Any]:
    """All that is still to come from a process until it ends."""
    found = []
    with suppress(EOFError):
        while True:
            found.append(connection.recv())
    return found


def append_in_two_parts(file: RowFile, whole: Callable[..., None], position: int, records: Any) -> None:
    """A write that a kill is likely to cut in two."""
    half = len(records) // 2
    whole(file, position, records[:half])
    time.sleep(0.002)
    whole(file, position + half, records[half:])


def go_on_until_killed(directory: Path, parent: Connection) -> None:
    """Say what the directory holds, be told which steps to train, tell of every commit, and at the end of all rows."""
    torch.set_num_threads(1)
    RowFile.append = partialmethod(append_in_two_parts, RowFile.append)
    collection = built(directory=directory, look_ahead=2)
    parent.send(numbers(collection))

    def commit(step: int) -> None:
        if (step + 1) % COMMIT_EVERY == 0:
            collection.commit()
            parent.send(step + 1)

    train(collection, parent.recv(), commit)
    parent.send(numbers(collection))


def numbers(collection: CachedEmbeddingBagCollection) -> dict[str, list[Any]]:
    """All rows, without shared memory that would be gone with the process."""
    return {name: value.tolist() for name, value in snapshot(collection).items()}


def tensors(rows: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in rows.items()}


@pytest.mark.slow
def test_killed_while_writing_back_opens_at_the_last_commit_and_ends_as_if_never_killed(tmp_path: Path) -> None:
    collection = started(directory=tmp_path)
    collection.commit()
    close(collection)
    moments = random.Random(3)
    plain, done = Plain(), 0
    for _ in range(4):
        with process(go_on_until_killed, tmp_path) as (child, connection):
            done = found_after(plain, done, tensors(connection.recv()))
            connection.send(range(done, 10**4))
            told = [connection.recv()]
            time.sleep(moments.uniform(0, 0.2))
            os.kill(child.pid, signal.SIGKILL)
            told += rest(connection)
        assert child.exitcode == -signal.SIGKILL
        plain.train(range(done, told[-1]))
        done = told[-1]
    with process(go_on_until_killed, tmp_path) as (_, connection):
        done = found_after(plain, done, tensors(connection.recv()))
        connection.send(range(done, done + 10))
        *_, rows = rest(connection)
    plain.train(range(done, done + 10))
    assert_same(tensors(rows), plain.rows())


def found_after(plain: Plain, told: int, rows: Mapping[str, Tensor]) -> int:
    """The step of the last commit: the one told of, or the next, which may be done and not yet told."""
    if all(torch.equal(rows[name], value) for name, value in plain.rows().items()):
        return told
    plain.train(range(told, told + COMMIT_EVERY))
    assert_same(rows, plain.rows())
    return told + COMMIT_EVERY


STEPS_OF_SAVE = ["fsync"] * 5 + ["replace", "fsync"]
"""Rows and policy of two tables, the manifest, which takes its place, and the directory."""


def save_until_killed(directory: Path, moment: int, parent: Connection) -> None:
    """Go on from a checkpoint, and end before one of the steps of the next one."""
    torch.set_num_threads(1)
    collection = built(policy="lfu")
    collection.load(directory)
    train(collection, range(4, 5))
    steps = iter(range(len(STEPS_OF_SAVE)))

    def or_killed(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if next(steps) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments)

        return call

    os.fsync = or_killed(os.fsync)  # type: ignore[assignment]
    Path.replace = or_killed(Path.replace)  # type: ignore[assignment,method-assign]
    collection.save(directory)


@pytest.mark.slow
def test_killed_during_save_loads_as_the_previous_checkpoint_until_the_new_one_is_whole(tmp_path: Path) -> None:
    collection = started(policy="lfu")
    train(collection, range(4))
    collection.save(tmp_path / "first")
    for moment in range(len(STEPS_OF_SAVE)):
        directory = tmp_path / str(moment)
        shutil.copytree(tmp_path / "first", directory)
        with process(save_until_killed, directory, moment) as (child, _):
            pass
        assert child.exitcode == -signal.SIGKILL
        whole = moment > STEPS_OF_SAVE.index("replace")
        again = built()
        again.load(directory)
        assert_same(snapshot(again), plain_after(5 if whole else 4))


def test_next_save_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    collection = started()
    collection.save(tmp_path)
    with process(save_until_killed, tmp_path, STEPS_OF_SAVE.index("replace")):
        pass
    collection.save(tmp_path)
    tables = json.loads((tmp_path / "manifest.json").read_text())["tables"].values()
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", *(entry["rows_file"] for entry in tables)}


def test_commit_that_fails_for_one_of_two_widths_opens_as_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = started(TWO_WIDTHS, directory=tmp_path)
    train(collection, range(2))
    collection.commit()
    train(collection, range(2, 4))
    original, calls = file_tier.save_map, []

    def full_at_the_second(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(file_tier, "save_map", full_at_the_second)
        with pytest.raises(OSError, match="No space left"):
            collection.commit()
    close(collection)
    again = built(TWO_WIDTHS, directory=tmp_path)
    assert_same(snapshot(again), plain_after(2, TWO_WIDTHS))
    close(again)


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("calls", range(11))
def test_commit_of_two_widths_that_ends_between_any_two_steps_opens_as_one_commit_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    collection = started(TWO_WIDTHS, directory=tmp_path)
    train(collection, range(2))
    collection.commit()
    train(collection, range(2, 4))
    collection.flush()
    left = iter(range(calls))

    def or_end(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if next(left, None) is None:
                raise Ended
            return original(*arguments)

        return call

    with monkeypatch.context() as patch, suppress(Ended):
        patch.setattr(os, "fsync", or_end(os.fsync))
        patch.setattr(Path, "replace", or_end(Path.replace))
        collection.commit()
    close(collection)
    again = built(TWO_WIDTHS, directory=tmp_path)
    found = snapshot(again)
    wanted = [plain_after(steps, TWO_WIDTHS) for steps in (2, 4)]
    assert any(all(torch.equal(found[name], rows[name]) for name in rows) for rows in wanted)
    close(again)


# A full disk


class Watched(SlowTier):
    """A tier that calls something before every read and write: it may raise, or take its time."""

    def __init__(self, tier: SlowTier, before: Callable[[str, Tensor], None]) -> None:
        super().__init__(rows=tier.rows, layout=tier.layout)
        self._tier = tier
        self._before = before

    def read(self, rows: Tensor, out: Tensor) -> None:
        self._before("read", rows)
        self._tier.read(rows, out)

    def write(self, rows: Tensor, records: Tensor) -> None:
        self._before("write", rows)
        self._tier.write(rows, records)

    def memory(self) -> Anatomy:
        return dict(self._tier.memory())

    def close(self) -> None:
        self._tier.close()


def watched(
    before: Callable[[str, Tensor], None], tables: tuple[Any, ...] = TABLES, **choices: object
) -> CachedEmbeddingBagCollection:
    """A collection behind such tiers, with its rows loaded."""
    make = CacheBuilder._tier

    def watched_tier(*arguments: Any) -> SlowTier:
        return Watched(make(*arguments), before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheBuilder, "_tier", watched_tier)
        return started(tables, **choices)


class Disk:
    """A disk that refuses reads or writes while it is `full`, the next ones excepted that it still has `room` for."""

    def __init__(self, *, refuses: str = "write") -> None:
        self.refuses = refuses
        self.full = False
        self.room = 0

    def __call__(self, operation: str, rows: Tensor) -> None:
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


LOOK_AHEAD = pytest.mark.parametrize("look_ahead", [0, 2])
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
    close(collection)
    again = built(directory=tmp_path)
    assert_same(snapshot(again), plain_after(done + 5))
    close(again)


@LOOK_AHEAD
@RATIO
def test_batch_refused_by_a_full_disk_is_looked_up_once_there_is_space(look_ahead: int, ratio: float) -> None:
    disk = Disk()
    collection = watched(disk, look_ahead=look_ahead, cache_ratio=ratio)
    train(collection, range(5))
    disk.full = True
    waiting: list[KeyedJaggedTensor] = []
    done = 5
    with pytest.raises(WriteBackFailed):
        for done in range(5, 20):
            waiting = [batch(done)]
            learn(collection(waiting[0]).values(), done)
    disk.full = False
    learn(collection(waiting[0]).values(), done)
    assert_same(snapshot(collection), plain_after(done + 1))


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
def test_flush_refused_by_a_full_disk_writes_every_row_when_it_is_repeated(look_ahead: int) -> None:
    disk = Disk()
    collection = watched(disk, look_ahead=look_ahead, cache_ratio=1.0)
    train(collection, range(5))
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        collection.flush()
    disk.full = False
    collection.flush()
    assert_same(snapshot(collection), plain_after(5))


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


def test_commit_to_a_full_disk_keeps_the_last_one_and_succeeds_once_there_is_space(tmp_path: Path) -> None:
    collection = started(directory=tmp_path)
    collection.commit()
    train(collection, range(3))
    collection.flush()
    with file_size_limit(64), pytest.raises(OSError, match="File too large"):
        collection.commit()
    shutil.copytree(tmp_path, tmp_path.parent / "crashed")
    crashed = built(directory=tmp_path.parent / "crashed")
    assert_same(snapshot(crashed), plain_after(0))
    close(crashed)
    collection.commit()
    close(collection)
    again = built(directory=tmp_path)
    assert_same(snapshot(again), plain_after(3))
    close(again)


# A slow disk


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 5])
def test_slow_disk_changes_no_bit(look_ahead: int) -> None:
    times = random.Random(look_ahead)
    collection = watched(lambda operation, rows: time.sleep(times.uniform(0, 0.006)), look_ahead=look_ahead)
    train(collection, range(30))
    assert_same(snapshot(collection), plain_after(30))


@pytest.mark.parametrize("look_ahead", [0, 1, 3])
def test_row_written_back_and_fetched_again_at_once_comes_with_its_new_value(look_ahead: int) -> None:
    one = (table("rows", 2, 4),)
    written: list[int] = []

    def slow(operation: str, rows: Tensor) -> None:
        if operation == "write":
            time.sleep(0.01)
            written.extend(rows.tolist())

    collection = watched(slow, one, cache_ratio=0.5, look_ahead=look_ahead)
    plain = Plain(one)
    written.clear()
    batches = [batch_of({"rows": [[step % 2]]}) for step in range(12)]
    for step, features in enumerate(batches):
        for coming in batches[step : step + 1 + look_ahead] if not step else batches[step + look_ahead :][:1]:
            if look_ahead:
                collection.prefetch(coming)
        pooled = collection(features).values()
        assert torch.equal(pooled, plain.pooled(features).float())
        plain.step(features, gradient(step, pooled))
        learn(pooled, step)
    collection._caches[0].writer.wait()
    assert written == [0, 1] * 5 + [0]


# A planner that fails


class Breaks(LRU):
    """A policy of one's own with a fault in it."""

    def __init__(self, error: Exception, at: int) -> None:
        self._error, self._at = error, at

    def keys(self, rows, occurrences, *, batch, learn):
        if batch == self._at:
            raise self._error
        return super().keys(rows, occurrences, batch=batch, learn=learn)


@LOOK_AHEAD
@pytest.mark.parametrize("error", [RuntimeError("no idea"), MemoryError("no room"), IndexError("no such key")])
def test_exception_of_a_policy_surfaces_at_its_batch_and_from_then_on(look_ahead: int, error: Exception) -> None:
    collection = started(policy=lambda rows: Breaks(error, at=4), look_ahead=look_ahead)
    done: list[int] = []
    with pytest.raises(PlanningFailed, match="load what was saved last into a new one") as caught:
        train(collection, range(10), done.append)
    assert done == [0, 1, 2, 3]
    assert caught.value.__cause__ is error
    assert f"{type(error).__name__}: {error}" in str(caught.value)
    for call in (lambda: collection(batch(20)), collection.flush):
        with pytest.raises(PlanningFailed) as again:
            call()
        assert again.value.__cause__ is error


@LOOK_AHEAD
def test_training_goes_on_in_a_new_collection_from_what_was_saved_before_planning_failed(
    tmp_path: Path, look_ahead: int
) -> None:
    collection = started(policy=lambda rows: Breaks(MemoryError(), at=6), look_ahead=look_ahead)
    with pytest.raises(PlanningFailed):
        train(collection, range(10), lambda step: collection.save(tmp_path) if step == 3 else None)
    again = built(look_ahead=look_ahead)
    again.load(tmp_path)
    train(again, range(4, 10))
    assert_same(snapshot(again), plain_after(10))


# Wrong use


@LOOK_AHEAD
@pytest.mark.parametrize("wrong", [100, -1])
def test_id_outside_its_table_is_named_at_its_lookup_and_the_batches_around_it_train(
    look_ahead: int, wrong: int
) -> None:
    collection = started(look_ahead=look_ahead)
    outside = batch_of({"users": [[0], [299]], "from": [[1], []], "to": [[2], [wrong, 3]]})
    features = {0: batch(0), 1: batch(1), None: outside, 2: batch(2), 3: batch(3)}
    order = list(features)
    for at, step in enumerate(order):
        for ahead in order[: 1 + look_ahead] if not at else order[at + look_ahead :][:1]:
            if look_ahead:
                collection.prefetch(features[ahead])
        if step is None:
            with pytest.raises(IndexError, match=f"feature to: id {wrong} is outside table shops of 100 rows"):
                collection(outside)
        else:
            learn(collection(features[step]).values(), step)
    assert_same(snapshot(collection), plain_after(4))


def test_flush_over_an_announced_id_outside_its_table_leaves_the_error_to_its_lookup() -> None:
    collection = started(look_ahead=2)
    outside, after = batch_of({"users": [[300]], "from": [[]], "to": [[]]}), batch(0)
    for features in (outside, after):
        collection.prefetch(features)
    collection.flush()
    with pytest.raises(IndexError, match="feature users: id 300"):
        collection(outside)
    learn(collection(after).values(), 0)
    assert_same(snapshot(collection), plain_after(1))


def test_batches_out_of_announced_order_are_refused_and_taken_in_order_afterwards() -> None:
    collection = started(look_ahead=2)
    batches = [batch(step) for step in range(3)]
    for features in batches:
        collection.prefetch(features)
    with pytest.raises(RuntimeError, match="in the order in which they were announced"):
        collection(batches[1])
    for step, features in enumerate(batches):
        learn(collection(features).values(), step)
    assert_same(snapshot(collection), plain_after(3))


def test_batch_announced_as_not_to_be_trained_is_trained_once_announced_again() -> None:
    collection = started(look_ahead=2)
    features = batch(0)
    with torch.no_grad():
        collection.prefetch(features)
    with pytest.raises(RuntimeError, match=r"announced under torch.no_grad.* announce it again"):
        collection(features)
    collection.prefetch(features)
    learn(collection(features).values(), 0)
    train(collection, range(1, 4))
    assert_same(snapshot(collection), plain_after(4))


def test_announcing_without_look_ahead_is_refused() -> None:
    with pytest.raises(RuntimeError, match="look_ahead=0: give look_ahead"):
        built().prefetch(batch(0))


def test_lookup_while_a_batch_waits_for_its_backward_is_refused_and_both_train_in_turn() -> None:
    collection = started(look_ahead=2)
    first, second = batch(0), batch(1)
    for features in (first, second):
        collection.prefetch(features)
    pooled = collection(first).values()
    for call in (lambda: collection(second), collection.flush):
        with pytest.raises(RuntimeError, match="call backward first"):
            call()
    learn(pooled, 0)
    learn(collection(second).values(), 1)
    assert_same(snapshot(collection), plain_after(2))


def test_commit_of_rows_in_host_memory_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"use save\(\), or build with a directory"):
        built().commit()


# Checkpoints that are not what they should be


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    collection = started(policy="lfu")
    train(collection, range(3))
    collection.save(tmp_path / "saved")
    return tmp_path / "saved"


def file_of(saved: Path, entry: str) -> Path:
    shops = json.loads((saved / "manifest.json").read_text())["tables"]["shops"]
    return saved / (shops["rows_file"] if entry == "rows" else shops["policy"]["file"])


def flip(path: Path, place: int = 50) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x80
    path.write_bytes(data)


def assert_refused(saved: Path, error: type[Exception], file: Path, remedy: str, **choices: Any) -> None:
    """With the file and the remedy in the message, and without a change to any row."""
    collection = started(policy="lfu", **choices)
    before = snapshot(collection)
    with pytest.raises(error, match=remedy) as caught:
        collection.load(saved)
    assert str(file) in str(caught.value)
    assert_same(snapshot(collection), before)


@pytest.mark.parametrize("entry", ["rows", "policy"])
@pytest.mark.parametrize("damage", [Path.unlink, flip, lambda path: os.truncate(path, 60)])
def test_damaged_checkpoint_is_refused(saved: Path, entry: str, damage: Callable[[Path], object]) -> None:
    file = file_of(saved, entry)
    damage(file)
    assert_refused(saved, ValueError, file, "take an older checkpoint")


@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 60), lambda path: path.write_text("[]")])
def test_damaged_manifest_is_refused(saved: Path, damage: Callable[[Path], object]) -> None:
    damage(saved / "manifest.json")
    assert_refused(saved, ValueError, saved / "manifest.json", "take an older checkpoint")


def test_directory_without_checkpoint_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", FileNotFoundError, tmp_path / "none", "no manifest.json in it")


def test_checkpoint_of_a_newer_version_is_refused(saved: Path) -> None:
    manifest = saved / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    assert_refused(saved, ValueError, manifest, "of version 2, this code reads 1")


@pytest.mark.parametrize(
    ("tables", "choices", "difference"),
    [
        ((TABLES[0], table("clients", 100, 8)), {}, "clients, shops"),
        (TABLES[:1], {}, "shops"),
        ((TABLES[0], table("shops", 101, 8)), {}, "'rows': 100.*'rows': 101"),
        ((TABLES[0], table("shops", 100, 16)), {}, "'dim': 8.*'dim': 16"),
        ((TABLES[0], table("shops", 100, 8, half=True)), {}, "float32.*float16"),
        (
            TABLES,
            {"optimizer": SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.5)},
            r"'state': {}.*'state': {'sum': 1}",
        ),
    ],
)
def test_checkpoint_of_other_tables_or_optimizer_is_refused(
    saved: Path, tables: tuple[Any, ...], choices: dict[str, Any], difference: str
) -> None:
    assert_refused(saved, ValueError, saved / "manifest.json", difference, tables=tables, **choices)
