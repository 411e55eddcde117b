"""LRU does by the batch what its rule says of rows, told with lists, one row at a time."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, Step, assert_counts, setting, skewed_trace, traces

from suite.simulate import trace as traces_module
from suite.simulate.models.belady import BeladyModel
from suite.simulate.models.lru import LruModel
from suite.simulate.models.model import replay

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class BruteForceLru:
    """One list of rows, each queued at a batch: the first of the oldest batch leaves, unless a later one used it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.now = 0
        self.last: dict[int, int] = {}
        self.queued: list[tuple[int, int]] = []

    def send_away(self, in_hand: Sequence[int]) -> None:
        while True:
            batch, row = oldest = min(self.queued, key=lambda queued: queued[0])
            self.queued.remove(oldest)
            if self.last[row] == batch:
                del self.last[row]
                return
            if row not in in_hand:
                self.queued.append((self.last[row], row))

    def batch(self, rows: Sequence[int]) -> Step:
        self.now += 1
        missing = [row for row in rows if row not in self.last]
        self.last.update((row, self.now) for row in rows if row in self.last)
        back = 0
        for row in missing:
            full = len(self.last) == self.slots
            back += full
            if full and len(rows) > self.slots:
                continue  # trained past the cache
            if full:
                self.send_away(rows)
            self.last[row] = self.now
        assert len(rows) > self.slots or set(rows) <= set(self.last)
        waiting = {row for _, row in self.queued}
        self.queued += [(self.now, row) for row in rows if row in self.last and row not in waiting]
        return Step(set(missing), len(missing), back)


def told(trace: ListedTrace, slots: int) -> list[Step]:
    policy = BruteForceLru(slots)
    return [policy.batch(trace.distinct(i)) for i in range(trace.length)]


@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_the_model_equals_lists(trace, slots, counted_from):
    slots = min(slots, trace.rows)
    assert_counts(LruModel(setting(trace, slots, min(counted_from, trace.length)), {}), told(trace, slots))


@pytest.mark.parametrize("model", [LruModel, BeladyModel])
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
