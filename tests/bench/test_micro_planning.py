"""Planning a batch of the cache, in steady state, beside the one gather that no plan can do without."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
import pytest
from figures import POLICIES, ids_of, planner_of
from steps import ZipfTables
from turns import Gather, Side, Turns

from systems.freq_cache.cache.plan import Ids, Plan
from workloads.schema import CRITEO_KAGGLE

CACHE_RATIO = 0.015
LOOKUPS = {True: 425_984, False: 520}
"""Ids per batch at full size, over the tables of Criteo Kaggle as published, and in a test, over small ones."""
MOST_ROWS = {True: 2**31, False: 10_000}
ROUNDS = 80
WARMUP_ROUNDS = 40
"""Until as many rows are missed from one batch to the next."""
GATHER = "test_gather"


class Planned:
    """A planner and its stream, so many batches announced ahead."""

    def __init__(self, policy: str, look_ahead: int, *, sizes: list[int], lookups: int) -> None:
        self._sizes = sizes
        self._samples = lookups // len(self._sizes)
        self._stream = ZipfTables(self._sizes)
        frequencies = [counts.numpy() for counts in self._stream.frequencies()] if policy == "static" else []
        if policy != "static":
            frequencies = [np.empty(size, np.bool_) for size in self._sizes]  # only their sizes are asked for
        self._planner = planner_of(policy, frequencies, ratio=CACHE_RATIO)
        self._announced: deque[Ids] = deque()
        for _ in range(look_ahead):
            self._planner.announce(self._planner.distinct(self._next()), changes=True)

    def prepare(self) -> tuple[Ids]:
        return (self._next(),)

    def run(self, newest: Ids) -> Plan:
        self._planner.announce(self._planner.distinct(newest, np.array(self._sizes)), changes=True)
        return self._planner.plan()

    @property
    def rows_of_last(self) -> npt.NDArray[np.int64]:
        """The row of every id of the batch planned last, numbered through all tables."""
        planned = self._announced[-1 - self._planner.announced]
        return planned.values + np.repeat(planned.starts, np.diff(planned.ends, prepend=0))

    def _next(self) -> Ids:
        batch = ids_of(self._stream.ids(self._samples), self._sizes)
        self._announced.append(batch)
        while len(self._announced) > self._planner.announced + 2:
            self._announced.popleft()
        return batch


@pytest.fixture(scope="module")
def gather(full_size: bool) -> Gather:
    return Gather(rows=sum(sizes_of(full_size)), ids=LOOKUPS[full_size])


def sizes_of(full_size: bool) -> list[int]:
    return [min(rows, MOST_ROWS[full_size]) for _, rows in CRITEO_KAGGLE.categorical]


@pytest.mark.benchmark(group="planning")
@pytest.mark.parametrize("look_ahead", [0, 4, 16])
@pytest.mark.parametrize("policy", POLICIES)
def test_plan(turns: Turns, gather: Gather, full_size: bool, policy: str, look_ahead: int) -> None:
    lookups = LOOKUPS[full_size]
    planned = Planned(policy, look_ahead, sizes=sizes_of(full_size), lookups=lookups)
    ours = Side(
        name=f"test_plan[{policy}-{look_ahead}]",
        unit="ids",
        units=lookups,
        prepare=planned.prepare,
        run=planned.run,
    )
    plan, gathered = turns.measure(ours, beside=gather.side(GATHER), rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)
    gather.check(gathered)
    wanted = planned.rows_of_last
    assert np.array_equal(plan.rows[plan.inverse], wanted)
    assert np.unique(plan.slots).size == plan.unique_ids == np.unique(wanted).size
    assert np.array_equal(plan.slot_of_id, plan.slots[plan.inverse])
    assert plan.slot_of_id.min() >= 0
    assert plan.unique_misses > 0
