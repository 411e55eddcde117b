"""Policies in queues do by the batch what their rules say of rows."""

import numpy as np
import pytest
from brute_force_queues import (
    BruteForceLfuda,
    BruteForceLru,
    BruteForceQueues,
    BruteForceS3Fifo,
    BruteForceSieve,
    BruteForceTinyLfu,
    told,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, assert_counts, setting, skewed_trace, traces

from suite.simulate.models.bounds.belady import BeladyModel
from suite.simulate.models.model import CacheModel, replay
from suite.simulate.models.queues.lfuda import LfudaModel
from suite.simulate.models.queues.lru import LruModel
from suite.simulate.models.queues.s3fifo import S3FifoModel
from suite.simulate.models.queues.sieve import SieveModel
from suite.simulate.models.queues.tinylfu import TinyLfuModel, count, empty_sketch, estimate
from suite.simulate.traces import trace as traces_module

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PAIRS: list[tuple[type[CacheModel], type[BruteForceQueues]]] = [
    (LruModel, BruteForceLru),
    (S3FifoModel, BruteForceS3Fifo),
    (SieveModel, BruteForceSieve),
    (LfudaModel, BruteForceLfuda),
    (TinyLfuModel, BruteForceTinyLfu),
]
MODELS = [model for model, _ in PAIRS]


def one_row_a_batch(rows: list[int]) -> ListedTrace:
    return ListedTrace([64], [[row] for row in rows])


def misses(model: type[CacheModel], trace: ListedTrace, slots: int) -> list[int]:
    """Of batches of one row each, those that missed."""
    return np.flatnonzero(np.concatenate(replay(model(setting(trace, slots), {})).over_time)[:, 1]).tolist()


@pytest.mark.parametrize(("model", "brute_force"), PAIRS)
@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_queues_equal_lists(model, brute_force, trace, slots, counted_from):
    slots = min(slots, trace.rows)
    steps = told(trace, brute_force(slots))
    assert_counts(model(setting(trace, slots, min(counted_from, trace.length)), {}), steps)


@pytest.mark.parametrize(("model", "brute_force"), PAIRS)
@pytest.mark.parametrize("slots", [47, 150])
def test_queues_equal_lists_over_many_batches(model, brute_force, slots):
    trace = skewed_trace(tables=[200, 90, 3], batches=60, samples=20)
    tally = assert_counts(model(setting(trace, slots), {}), told(trace, brute_force(slots)))
    assert tally.rows_written_back > 250


@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60))
def test_s3_fifo_fills_its_main_queue_where_asked(trace, slots):
    slots = min(slots, trace.rows)
    steps = told(trace, BruteForceS3Fifo(slots, "main"))
    assert_counts(S3FifoModel(setting(trace, slots), {"fill": "main"}), steps)


def test_lru_sends_the_rows_of_the_oldest_batch_away_first():
    trace = ListedTrace([9], [[0, 1], [2, 3], [0], [4], [5], [1, 2, 3, 0]])  # 4 takes 1's slot, 5 that of 2 or 3
    tally = replay(LruModel(setting(trace, 4, 5), {}))
    assert (tally.unique_misses, tally.rows_fetched, tally.rows_written_back) == (2, 2, 2)


def test_s3_fifo_keeps_a_row_hit_twice_through_a_scan_that_lru_loses_it_to():
    rows = [0, 0, 0, *range(1, 25), 0]
    assert misses(S3FifoModel, one_row_a_batch(rows), 10)[-1] == len(rows) - 2
    assert misses(LruModel, one_row_a_batch(rows), 10)[-1] == len(rows) - 1


def test_s3_fifo_brings_a_row_that_its_ghost_knows_into_the_main_queue():
    scan = [*range(1, 11)]  # sends 0 away, then 1 when it comes back
    rows = [0, *scan, 0, *range(20, 28), 0, *range(30, 50), 0]
    missed = misses(S3FifoModel, one_row_a_batch(rows), 10)
    assert 11 in missed, "the ghost has no weights"
    assert 20 not in missed
    assert misses(S3FifoModel, one_row_a_batch([0, *range(20, 50), 0]), 10)[-1] == 31, "a scan alone sends it away"


def test_sieve_spares_rows_hit_since_its_hand_came_by():
    rows = [0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 2]  # 4 and 5 take the slots of 2 and 3; 0 and 1 are unmarked, and still there
    assert misses(SieveModel, one_row_a_batch(rows), 4) == [0, 1, 2, 3, 6, 7, 10]


def test_lfuda_lets_a_row_go_whose_many_accesses_are_long_ago():
    few, many = ([*[0] * 6, *range(1, newcomers), 0] for newcomers in (5, 12))  # the age rises by one with each
    assert misses(LfudaModel, one_row_a_batch(few), 2)[-1] == len(few) - 2, "its count keeps it for a while"
    assert misses(LfudaModel, one_row_a_batch(many), 2)[-1] == len(many) - 1


def test_w_tiny_lfu_sends_a_scan_away_and_keeps_what_was_used_before_it():
    rows = [*[0, 1, 2, 3] * 3, *range(10, 30), 0, 1, 2, 3]
    assert misses(TinyLfuModel, one_row_a_batch(rows), 5)[-1] == 31
    assert misses(LruModel, one_row_a_batch(rows), 5)[-1] == len(rows) - 1


def test_the_sketch_counts_up_to_fifteen_and_forgets_half_after_ten_accesses_per_slot():
    sketch = empty_sketch(64)
    for row in range(20):
        for _ in range(row):
            count(sketch, np.int32(row))
    assert [int(estimate(sketch, np.int32(row))) for row in range(20)] == [min(row, 15) for row in range(20)]
    for _ in range(640 - 190):
        count(sketch, np.int32(19))
    assert [int(estimate(sketch, np.int32(row))) for row in range(20)] == [min(row, 15) // 2 for row in range(20)]


@pytest.mark.parametrize("model", [LruModel, S3FifoModel, SieveModel, LfudaModel, TinyLfuModel, BeladyModel])
def test_batches_taken_at_once_count_as_one_by_one(model, monkeypatch):
    parameters = {key: values[0] for key, values in model.variants.items()}
    tallies = []
    for run_ids in (1, 7 * 60, 1 << 17):  # one batch, seven, all
        trace = skewed_trace(tables=[200, 90, 3], batches=60, samples=20)
        monkeypatch.setattr(traces_module, "RUN_IDS", run_ids)
        tallies.append(replay(model(setting(trace, 90, counted_from=10), parameters)))
    counted = [
        [vars(tally)[name] for name in ("batches", "unique_ids", "unique_misses", "lookup_misses", "rows_written_back")]
        for tally in tallies
    ]
    over_time = [np.concatenate(tally.over_time).tolist() for tally in tallies]
    assert counted[0] == counted[1] == counted[2]
    assert over_time[0] == over_time[1] == over_time[2]
    assert np.sum(over_time[0], axis=0).tolist() == [tallies[0].unique_ids, tallies[0].unique_misses]


@pytest.mark.parametrize("model", MODELS)
def test_batch_larger_than_the_cache_drives_nothing_out(model):
    trace = ListedTrace([20], [[0, 1, 2, 2], [*range(3, 13), 3], [0, 1, 2, 3]])
    made = model(setting(trace, 4, 1), {})
    tally = replay(made)
    assert tally.overflow_batches == 1
    assert tally.unique_misses == 10  # 3 took the free slot, the others went past the cache, the last batch hits
    assert tally.lookup_misses == 11
    assert (tally.rows_fetched, tally.rows_written_back) == (10, 9)
