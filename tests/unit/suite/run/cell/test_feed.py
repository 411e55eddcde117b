"""Where batches come from: who makes them is a rule, and they are the same whoever does."""

from __future__ import annotations

import threading
import time

import pytest

from suite.run.cell import feed
from suite.run.cell.feed import (
    BeforeTheClock,
    DuringTraining,
    FeedPlan,
    InProcess,
    Mode,
    open_feed,
    plan_feed,
    usable_cores,
)
from tests.unit.workloads.produced import equal, open_avazu

SMALL = 200 * 2048 * 26
FULL = 2000 * 16384 * 26


@pytest.mark.parametrize(
    ("device", "lookups", "cores", "mode", "producers", "threads"),
    [
        ("cuda", FULL, 16, Mode.DURING, 4, 12),
        ("cuda", SMALL, 16, Mode.DURING, 4, 12),
        ("cuda", SMALL, 4, Mode.DURING, 1, 3),
        ("cuda", SMALL, 128, Mode.DURING, 8, 32),
        ("cuda", 10_000, 16, Mode.IN_PROCESS, 0, 32),
        ("cuda", FULL, 2, Mode.BEFORE, 2, 32),
        ("cpu", FULL, 16, Mode.BEFORE, 8, 32),
        ("cpu", FULL, 2, Mode.BEFORE, 2, 32),
        ("cpu", SMALL, 2, Mode.IN_PROCESS, 0, 32),
        ("cpu", FULL, 1, Mode.IN_PROCESS, 0, 32),
    ],
)
def test_producers_run_during_training_only_where_there_are_cores_to_spare(
    device, lookups, cores, mode, producers, threads
):
    planned = plan_feed(device=device, lookups=lookups, cores=cores, threads=32)
    assert planned == FeedPlan(mode=mode, producers=producers, threads=threads)
    if mode is Mode.DURING:
        assert planned.producers + min(planned.threads, cores - planned.producers) <= cores


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), ("", 8)]
)
def test_cores_are_physical_ones_within_affinity_and_quota(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(feed.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(feed.psutil, "cpu_count", lambda logical: 8)
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(feed, "_CPU_QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == cores
    monkeypatch.setattr(feed, "_CPU_QUOTA", tmp_path / "absent")
    assert usable_cores() == 8


class Asked:
    """A source that writes down what is asked of it."""

    def __init__(self):
        self.requested, self.taken = 0, 0

    def request(self, count):
        self.requested += count

    def take(self):
        assert self.taken < self.requested
        self.taken += 1
        return self.taken


def test_before_the_clock_all_batches_of_a_run_are_there_and_no_more_are_made_in_it():
    source = Asked()
    waiting = BeforeTheClock(source)
    waiting.fill(5)
    assert (source.requested, source.taken) == (5, 5)
    assert [waiting.take() for _ in range(3)] == [1, 2, 3]
    assert source.taken == 5
    beats = []
    waiting.fill(4, on_batch=lambda: beats.append(1))
    assert len(beats) == 2
    assert (source.requested, source.taken) == (7, 7)
    waiting.fill(0)
    assert [waiting.take() for _ in range(4)] == [4, 5, 6, 7]


class SlowProducer:
    """Stands in for a producer whose third batch is late."""

    def __init__(self):
        self.requested, self.taken, self.late = 0, 0, threading.Event()

    def request(self, count):
        self.requested += count

    def settle(self):
        self.settled_after = self.taken

    def take(self):
        self.taken += 1
        if self.taken == 3:
            self.late.wait(20)
        if self.taken == 6:
            raise ValueError("batch five is broken")
        return self.taken


def test_during_training_batches_are_taken_ahead_in_order_and_errors_arrive_in_their_turn():
    producer = SlowProducer()
    ahead = DuringTraining(producer, total=7)
    assert producer.requested == 7
    assert [ahead.take(), ahead.take()] == [1, 2]
    timer = threading.Timer(0.2, producer.late.set)
    timer.start()
    start = time.perf_counter()
    assert ahead.take() == 3
    assert time.perf_counter() - start > 0.1  # waited, as the trainer's clock would see
    ahead.fill(2)
    assert producer.settled_after >= 5
    assert [ahead.take(), ahead.take()] == [4, 5]
    with pytest.raises(ValueError, match="batch five is broken"):
        ahead.take()
    ahead.close()
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())


@pytest.mark.parametrize("mode", [Mode.IN_PROCESS, pytest.param(Mode.DURING, marks=pytest.mark.slow)])
def test_batches_are_the_same_however_they_are_made(mode):
    workload = open_avazu()
    plan = FeedPlan(mode=mode, producers=0 if mode is Mode.IN_PROCESS else 1, threads=1)
    with open_feed(plan, workload, reopen=open_avazu, total=9, pin_memory=False) as opened:
        batches = []
        for run in (4, 5):
            opened.fill(run)
            batches += [opened.take() for _ in range(run)]
    assert all(equal(batch, workload.batch(index)) for index, batch in enumerate(batches))


def test_source_of_this_process_makes_a_batch_when_it_is_taken_and_none_before():
    workload = open_avazu()
    source = InProcess(workload)
    source.request(3)
    assert all(equal(source.take(), workload.batch(index)) for index in range(3))
