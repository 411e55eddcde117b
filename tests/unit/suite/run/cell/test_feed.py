"""Where batches come from: who makes them is a rule, and they are the same whoever does."""

import math
import threading
import time
from itertools import tee

import pytest
import torch

from suite.run.cell import feed
from suite.run.cell.feed import (
    BackgroundLoader,
    PreloadedBatches,
    made_batches,
    producers_for,
    usable_cores,
)
from tests.unit.workloads.produced import equal, open_avazu

CPU = torch.device("cpu")
SMALL = 200 * 2048 * 26
FULL = 2000 * 16384 * 26


@pytest.mark.parametrize(
    ("device", "lookups", "cores", "producers"),
    [
        ("cuda", FULL, 16, 4),
        ("cuda", SMALL, 4, 1),
        ("cuda", SMALL, 3, 0),
        ("cuda", SMALL, 128, 8),
        ("cuda", 10_000, 16, 0),
        ("cpu", FULL, 16, 0),
    ],
)
def test_producers_run_during_training_only_where_there_are_cores_to_spare(device, lookups, cores, producers):
    assert producers_for(device=device, lookups=lookups, cores=cores) == producers


@pytest.mark.parametrize(("granted", "cores"), [(2.5, 2), (0.5, 1), (16, 8), (math.inf, 8)])
def test_cores_are_physical_ones_within_affinity_and_quota(monkeypatch, granted, cores):
    monkeypatch.setattr(feed.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(feed.psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr(feed, "granted_cpus", lambda: granted)
    assert usable_cores() == cores


def test_before_the_clock_all_batches_of_a_run_are_there_and_no_more_are_made_in_it():
    workload, made = open_avazu(), []

    def make(index):
        made.append(index)
        return workload.batch(index)

    beats = []
    waiting = PreloadedBatches(made_batches(make, pin_memory=False), on_batch=lambda: beats.append(1))
    waiting.fill(5)
    assert made == [0, 1, 2, 3, 4]
    assert all(equal(waiting.take(), workload.batch(index)) for index in range(3))
    waiting.fill(4)
    assert (len(beats), made) == (7, [0, 1, 2, 3, 4, 5, 6])
    waiting.fill(0)
    assert all(equal(waiting.take(), workload.batch(index)) for index in range(3, 7))
    assert len(made) == 7


def test_feeds_that_share_batches_take_the_same_ones_with_offsets_of_their_own():
    workload = open_avazu()
    feeds = [PreloadedBatches(same) for same in tee(made_batches(workload.batch, pin_memory=False))]
    for feed_of_one in feeds:
        feed_of_one.fill(3)
    for index in range(3):
        one, other = (feed_of_one.take() for feed_of_one in feeds)
        assert equal(one, workload.batch(index))
        assert one.dense is other.dense
        assert one.features is not other.features


class SlowProducer:
    """Stands in for a producer whose third batch is late."""

    def __init__(self):
        self.taken, self.late = 0, threading.Event()

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
    ahead = BackgroundLoader(producer, total=7)
    assert [ahead.take(), ahead.take()] == [1, 2]
    timer = threading.Timer(0.2, producer.late.set)
    start = time.perf_counter()
    timer.start()
    assert ahead.take() == 3
    assert time.perf_counter() - start > 0.1  # waited, as the trainer's clock would see
    ahead.fill(2)
    assert producer.settled_after >= 5
    assert [ahead.take(), ahead.take()] == [4, 5]
    with pytest.raises(ValueError, match="batch five is broken"):
        ahead.take()
    ahead.close()
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())
