"""The end of a collection: its threads and its directory are released whoever ends it, and whatever comes between."""

import gc
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from systems.freq_cache import LRU
from systems.freq_cache.cache.plan import Int32s
from tests.faults.freq_cache_training import batch, built, learn, started


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
    assert not {"cache-planning", "cache-sending", "cache-writing"} & {thread.name for thread in threading.enumerate()}
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
