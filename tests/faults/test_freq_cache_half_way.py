"""The cache where a call, a plan or a backward ends half-way, or comes in the middle of another."""

import gc
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from torch import Tensor

import systems
from systems import in_flight
from systems.freq_cache import LRU, CachedEmbeddingBagCollection
from systems.freq_cache.batches import PLANNED_AHEAD
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.cache.mover import BatchMover
from systems.freq_cache.cache.plan import Int32s
from systems.freq_cache.cache.slot_table import SlotTable
from systems.freq_cache.pipeline import PlanningFailed
from tests.contract.scenes import assert_same, snapshot, table
from tests.faults.freq_cache_training import (
    ADAGRAD,
    LOOK_AHEAD,
    Plain,
    batch,
    built,
    failing_once,
    gradient,
    learn,
    plain_after,
    started,
    train,
)

SOURCES = str(Path(systems.__file__).parent)


def test_call_from_a_hook_of_backward_is_refused_and_its_update_is_kept(tmp_path: Path) -> None:
    collection = started()
    for step in range(4):
        pooled = collection(batch(step)).values()
        if step == 1:
            pooled.grad_fn.register_prehook(lambda _: collection.save(tmp_path))  # after the cache let backward through
            with pytest.raises(RuntimeError, match="not this from its hooks"):
                learn(pooled, step)
            del pooled
            pooled = collection(batch(step)).values()
        learn(pooled, step)
        del pooled
    assert_same(snapshot(collection), plain_after(4))


@pytest.mark.parametrize("moved", [False, True])
def test_backward_that_comes_on_another_thread_while_rows_are_about_to_move_is_refused(
    monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """Between the check that nothing waits and the expiry of what was looked up; `moved`: for a flush."""
    collection, plain, refused = started(), Plain(), []
    kept = [collection(batch(0)).values()]
    pooled = kept[0]
    if not moved:
        (pooled * gradient(0, pooled)).sum().backward(retain_graph=True)
        plain.train(range(1))
    late = in_flight.InFlight._refuse_waiting

    def go_backward() -> None:
        try:
            (kept[0] * gradient(0, kept[0])).sum().backward(retain_graph=True)
        except RuntimeError as error:
            refused.append("came too late" in str(error))

    def check_then_backward(self: in_flight.InFlight, *given: object, **named: object) -> None:
        late(self, *given, **named)
        monkeypatch.setattr(in_flight.InFlight, "_refuse_waiting", late)
        other = threading.Thread(target=go_backward)
        other.start()
        other.join()

    monkeypatch.setattr(in_flight.InFlight, "_refuse_waiting", check_then_backward)
    if moved:
        collection.flush()
    else:
        learn(collection(batch(1)).values(), 1)
        plain.train(range(1, 2))
    if not refused:  # then it came in time
        plain.train(range(1))
    kept.clear()
    del pooled
    for step in (2, 3):
        learn(collection(batch(step)).values(), step)
    plain.train(range(2, 4))
    assert_same(snapshot(collection), plain.rows())


def test_no_python_runs_between_the_kernels_of_one_backward() -> None:
    """An interrupt would be raised there, and end backward when some tables are updated and others are not."""
    tables, called = (table("shops", 40, 6), table("users", 60, 8)), []
    pooled = started(tables, optimizer=ADAGRAD, cache_ratio=0.5)(batch(0, tables)).values()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        learn(pooled, 0)
    finally:
        sys.setprofile(None)
    assert called[:1] == ["come_in_time"]
    assert called.count("come_in_time") == 1
    assert set(called) <= {"come_in_time", "_waiting", "<genexpr>", "<listcomp>"}


def test_backward_that_ended_between_two_lookups_is_refused_from_then_on(tmp_path: Path) -> None:
    collection = started(lookups_per_backward=2, cache_ratio=0.3)
    first, second = collection(batch(0)).values(), collection(batch(1)).values()

    def fail(_: Tensor) -> None:
        raise ValueError("a hook's own")

    first.register_hook(fail)  # backward comes to the second one before
    with pytest.raises(ValueError, match="own"):
        (first.sum() + second.sum()).backward()
    del first, second
    for call in (lambda: collection(batch(2)), lambda: collection.save(tmp_path), collection.flush):
        with pytest.raises(RuntimeError, match="backward ended half-way"):
            call()


def test_call_in_the_middle_of_another_on_the_same_thread_is_refused(tmp_path: Path) -> None:
    """As a signal handler makes it that saves and returns."""
    collection = started()
    pool = collection.caches[0].pool
    look_up, refused = pool.look_up, []

    def interrupted(*given: object) -> Tensor:
        pooled = look_up(*given)
        for call in (lambda: collection.save(tmp_path), collection.close, collection.state_dict):
            with pytest.raises(RuntimeError, match="in the middle of a call"):
                call()
            refused.append(call)
        return pooled

    pool.look_up = interrupted
    learn(collection(batch(0)).values(), 0)
    pool.look_up = look_up
    for step in range(1, 4):
        learn(collection(batch(step)).values(), step)
    assert len(refused) == 3
    assert_same(snapshot(collection), plain_after(4))


@pytest.mark.parametrize("calls_again", [True, False])
def test_mark_that_an_interrupt_leaves_keeps_nobody_out(calls_again: bool) -> None:
    collection, refused = started(), []
    with pytest.raises(KeyboardInterrupt):
        _leave_a_mark(collection)
    if calls_again:
        learn(collection(batch(0)).values(), 0)

    def other() -> None:
        try:
            for step in range(1 if calls_again else 0, 2):
                learn(collection(batch(step)).values(), step)
        except RuntimeError as error:
            refused.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert not refused
    assert_same(snapshot(collection), plain_after(2))


def _leave_a_mark(collection: CachedEmbeddingBagCollection) -> None:
    collection._access.enter()
    raise KeyboardInterrupt


def test_batch_whose_lookup_was_interrupted_may_be_filled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    collection, features = started(), batch(0)
    monkeypatch.setattr(BatchMover, "move", failing_once(BatchMover.move, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        collection(features)
    features.values().copy_(batch(1).values())
    plain, pooled = Plain(), collection(features).values()
    learn(pooled, 1)
    plain.step(features, gradient(1, pooled))
    assert_same(snapshot(collection), plain.rows())


def test_learning_rate_whose_first_lookup_was_interrupted_holds_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    collection, plain = started(), Plain()
    collection.set_learning_rate(0.25)
    interrupted = failing_once(SlotTable.set_hyper_parameters, KeyboardInterrupt())
    monkeypatch.setattr(SlotTable, "set_hyper_parameters", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collection(batch(0))
    learn(collection(batch(0)).values(), 0)
    plain.optimizer = replace(plain.optimizer, lr=0.25)
    plain.train(range(1))
    assert_same(snapshot(collection), plain.rows())


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
def test_exception_of_a_policy_surfaces_once_its_batch_is_planned_and_from_then_on(
    look_ahead: int, error: Exception
) -> None:
    collection = started(policy=lambda rows: Breaks(error, at=4), look_ahead=look_ahead)
    done: list[int] = []
    with pytest.raises(PlanningFailed, match="load what was saved last into a new one") as caught:
        train(collection, range(10), done.append)
    assert done == list(range(len(done)))
    assert 4 - PLANNED_AHEAD <= len(done) <= 4
    assert caught.value.__cause__ is error
    assert f"{type(error).__name__}: {error}" in str(caught.value)
    for call in (lambda: collection(batch(20)), collection.flush):
        with pytest.raises(PlanningFailed) as again:
            call()
        assert again.value.__cause__ is error


@LOOK_AHEAD
def test_batch_whose_rows_found_no_room_is_looked_up_again(look_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After those announced behind it, which the planner knew before it."""
    collection, batches = started(look_ahead=look_ahead), [batch(step) for step in range(6)]
    monkeypatch.setattr(Cache, "distinct", failing_once(Cache.distinct, MemoryError("no room"), at=2))
    learn(collection(batches[0]).values(), 0)
    for features in batches[1 : 2 + look_ahead] if look_ahead else ():
        collection.prefetch(features)
    with pytest.raises(MemoryError, match="no room"):
        collection(batches[1])
    for step in range(1, 6):
        learn(collection(batches[step]).values(), step)
    assert_same(snapshot(collection), plain_after(6))


# The end of a collection: threads and directory are released whoever ends it, and whatever comes between


@pytest.mark.timeout(30)
def test_closing_while_a_plan_is_awaited_ends() -> None:
    """The sending thread waits for a plan that the planning thread has not begun, and now never will."""
    collection = started(look_ahead=4)
    learn(collection(batch(0)).values(), 0)
    leave, planning = threading.Event(), collection._pipeline._planning
    assert planning is not None
    planning.submit(leave.wait)
    for step in range(1, 5):
        collection.prefetch(batch(step))
    threading.Timer(0.1, leave.set).start()
    collection.close()


@pytest.mark.timeout(60)
def test_collection_collected_on_its_own_planning_thread_is_released(tmp_path: Path) -> None:
    """The garbage collector runs on whichever thread allocates. The sending thread waits for what that one does."""
    dropped, collected = threading.Event(), threading.Event()

    class Collecting(LRU):
        def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
            if batch == 2:
                dropped.wait(30)
                gc.collect()
                collected.set()
            return super().keys(rows, occurrences, batch=batch, learn=learn)

    collection = started(look_ahead=4, policy=lambda _: Collecting(), directory=tmp_path)
    learn(collection(batch(0)).values(), 0)
    gc.disable()
    try:
        for step in range(1, 5):
            collection.prefetch(batch(step))
        time.sleep(0.2)  # the sending thread comes to wait for the plan
        cycle: list[object] = [collection]
        cycle.append(cycle)
        released = collection._end
        del collection, cycle
        dropped.set()
        assert collected.wait(30)
    finally:
        gc.enable()
    assert not released.alive
    for _ in range(100):
        with suppress(BlockingIOError):
            built(look_ahead=0, directory=tmp_path).close()
            return
        time.sleep(0.1)
    pytest.fail("the directory stays locked")


@pytest.mark.timeout(60)
def test_ctrl_c_while_closing_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    collection, begun = started(look_ahead=4, directory=tmp_path), threading.Event()

    def plan() -> None:
        begun.set()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    collection._pipeline._planning.submit(plan)  # type: ignore[union-attr]
    begun.wait(30)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            collection.close()
    finally:
        signal.signal(signal.SIGINT, before)
    ours = {f"cache-{task}" for task in ("finding", "planning", "sending", "writing")}
    assert not ours & {thread.name for thread in threading.enumerate()}
    built(look_ahead=0, directory=tmp_path).close()


def test_failure_to_start_a_thread_leaves_the_directory_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        if thread.name == "cache-writing":
            raise RuntimeError("can't start new thread")
        begin(thread)

    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        built(look_ahead=4, directory=tmp_path)
    built(look_ahead=0, directory=tmp_path).close()
