"""The cache when its planner fails, and when it is used wrongly."""

import pytest
import torch

from systems.freq_cache import LRU
from systems.freq_cache.pipeline import PLANNED_AHEAD, PlanningFailed
from tests.contract.scenes import assert_same, snapshot
from tests.faults.freq_cache_training import LOOK_AHEAD, batch, built, learn, plain_after, started, train

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


# Wrong use


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
    with pytest.raises(RuntimeError, match="call backward first"):
        collection(second)
    learn(pooled, 0)
    learn(collection(second).values(), 1)
    assert_same(snapshot(collection), plain_after(2))


def test_commit_of_rows_in_host_memory_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"use save\(\), or build with a directory"):
        built().commit()
