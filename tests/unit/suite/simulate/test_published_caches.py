"""ColossalAI's cache, cDLRM's and a hot set do what sorts over all slots, sets told one by one and a set do."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, Step, assert_counts, setting, skewed_trace, traces

from suite.simulate.models.cdlrm import CDLRMModel, most_sets, taken_for_prime
from suite.simulate.models.colossalai import ColossalAIModel
from suite.simulate.models.fae import HotSetModel
from suite.simulate.models.model import CannotReplay, replay

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def by_frequency(trace: ListedTrace) -> list[int]:
    """All rows, the most frequent first."""
    return sorted(range(trace.rows), key=lambda row: (-trace.counts[row], row))


class TooManyRows(Exception):
    """The cache's assertion."""


class BruteForceColossalAI:
    """Slots of rows, each with a count; empty ones hold None."""

    def __init__(self, trace: ListedTrace, *, slots: int, policy: str) -> None:
        self.trace = trace
        self.policy = policy
        ranked = by_frequency(trace)
        self.rank = {row: rank for rank, row in enumerate(ranked)}
        warm = min(math.ceil(slots * 0.7), trace.rows)
        self.row: list[int | None] = [*ranked[:warm], *[None] * (slots - warm)]
        self.count = [0 if row is None else trace.counts[row] for row in self.row]

    def operation(self, accesses: list[int]) -> set[int]:
        """Bring rows in. Returns the missing ones."""
        occurrences = Counter(accesses)
        if len(occurrences) > len(self.row):
            raise TooManyRows
        missing = sorted(row for row in occurrences if row not in self.row)
        empty = [slot for slot, row in enumerate(self.row) if row is None]
        leaving = len(missing) - len(empty)
        if leaving > 0:
            may = [slot for slot, row in enumerate(self.row) if row is not None and row not in occurrences]
            for slot in sorted(may, key=self._worth)[:leaving]:
                self.row[slot] = None
        empty = [slot for slot, row in enumerate(self.row) if row is None]
        for slot, row in zip(empty, missing, strict=False):
            self.row[slot], self.count[slot] = row, 0
        for slot, row in enumerate(self.row):
            self.count[slot] += occurrences[row] if row is not None else 0
        return set(missing)

    def _worth(self, slot: int) -> tuple[int, int]:
        row = self.row[slot]
        assert row is not None
        return (-self.rank[row], 0) if self.policy == "dataset" else (self.count[slot], slot)

    def told(self) -> list[Step]:
        """What each batch does."""
        steps = []
        for batch in self.trace.batches:
            free = self.row.count(None)
            missing = self.operation(batch)
            steps.append(Step(missing, len(missing), max(0, len(missing) - free)))
        return steps


class BruteForceCDLRM:
    """A dict of ways for every set of every table. Every missing row of a window draws once, in ascending order."""

    def __init__(self, trace: ListedTrace, *, sets: int) -> None:
        self.trace = trace
        self.sets = [min(rows, sets) for _, rows in trace.tables]
        self.ways: dict[tuple[int, int], list[int | None]] = {
            (table, i): [None] * 16 for table, sets in enumerate(self.sets) for i in range(sets)
        }
        self.generator = np.random.default_rng(0)
        self.overwritten = 0

    def set_of(self, row: int) -> tuple[int, int]:
        table = self.trace.table_of(row)
        return table, (row - int(self.trace.table_starts[table])) % self.sets[table]

    def cached(self, row: int) -> bool:
        return row in self.ways[self.set_of(row)]

    def told(self, look_ahead: int) -> list[Step]:
        steps = []
        for first in range(0, self.trace.length, look_ahead):
            batches = self.trace.batches[first : first + look_ahead]
            steps += self.window([list(batch) for batch in batches])
        return steps

    def window(self, batches: list[list[int]]) -> list[Step]:
        needed = sorted({row for batch in batches for row in batch})
        absent = [row for row in needed if not self.cached(row)]
        before = {key: list(ways) for key, ways in self.ways.items()}
        drawn: dict[int, int] = {}
        for row, draw in zip(absent, self.generator.random(len(absent)), strict=True):
            open_ways = [way for way in range(16) if before[self.set_of(row)][way] not in needed]
            if open_ways:
                drawn[row] = open_ways[int(draw * len(open_ways))]
        for row, way in drawn.items():
            ways = self.ways[self.set_of(row)]
            self.overwritten += ways[way] in drawn
            ways[way] = row
        steps, entering = [], set(absent)
        for batch in batches:
            mine = entering & set(batch)
            entering -= mine
            auxiliary = [row for row in batch if not self.cached(row)]
            loaded = [row for row in mine if row in drawn]
            back = [row for row in loaded if before[self.set_of(row)][drawn[row]] is not None]
            steps.append(Step(mine | set(auxiliary), len(loaded) + len(auxiliary), len(back)))
        return steps


def hot_set(trace: ListedTrace, slots: int) -> list[Step]:
    hot = set(by_frequency(trace)[:slots])
    cold = [set(batch) - hot for batch in trace.batches]
    return [Step(rows, len(rows), len(rows)) for rows in cold]


@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_hot_set_equals_a_set(trace, slots, counted_from):
    model = HotSetModel(setting(trace, slots, min(counted_from, trace.length)), {})
    assert_counts(model, hot_set(trace, slots))


@pytest.mark.parametrize("policy", ColossalAIModel.variants["policy"])
@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_colossalais_cache_equals_one_that_sorts_its_slots(policy, trace, slots, counted_from):
    slots, counted_from = min(slots, trace.rows), min(counted_from, trace.length)
    model = ColossalAIModel(setting(trace, slots, counted_from), {"policy": policy})
    try:
        steps = BruteForceColossalAI(trace, slots=slots, policy=policy).told()
    except TooManyRows:  # its assertion fails
        with pytest.raises(CannotReplay, match=rf"distinct rows, the cache {slots} slots.*--cache-ratio"):
            replay(model)
    else:
        assert_counts(model, steps, overflows=False)


def cdlrm(trace: ListedTrace, *, slots: int, look_ahead: int, counted_from: int = 0) -> CDLRMModel:
    return CDLRMModel(setting(trace, slots, counted_from), {"look_ahead": str(look_ahead)})


def assert_equal(trace: ListedTrace, *, sets: int, look_ahead: int, counted_from: int = 0) -> BruteForceCDLRM:
    told = BruteForceCDLRM(trace, sets=sets)
    model = cdlrm(trace, slots=16 * sum(told.sets), look_ahead=look_ahead, counted_from=counted_from)
    assert model.slots == 16 * sum(told.sets)
    assert_counts(model, told.told(look_ahead))
    return told


@SETTINGS
@given(
    trace=traces(most_rows=200, most_ids=40).filter(lambda trace: max(rows for _, rows in trace.tables) >= 3),
    look_ahead=st.sampled_from([1, 2, 3, 64]),
    counted_from=st.integers(0, 3),
)
def test_cdlrms_cache_equals_sets_told_one_by_one(trace, look_ahead, counted_from):
    assert_equal(trace, sets=3, look_ahead=look_ahead, counted_from=min(counted_from, trace.length - 1))


@pytest.mark.parametrize("look_ahead", [2, 16])
def test_cdlrms_cache_equals_sets_told_one_by_one_over_many_batches(look_ahead):
    trace = skewed_trace(tables=[4000, 900, 3], batches=70, samples=60)
    assert assert_equal(trace, sets=11, look_ahead=look_ahead).overwritten > 100


def test_cdlrms_sets_are_the_most_that_fit_and_that_the_program_would_take():
    # it divides by 3 and more, below the root
    taken = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 17, 19, 22, 23, 25, 26, 29]
    assert [n for n in range(30) if taken_for_prime(n)] == taken
    assert most_sets([1000, 1000, 3], 16 * (21 + 21 + 3)) == 19
    assert most_sets([1000, 1000, 3], 16 * (22 + 22 + 3)) == 22
    trace = skewed_trace(tables=[400, 90, 2], batches=2, samples=15)
    assert cdlrm(trace, slots=16 * 8, look_ahead=2).slots == 16 * 8
    with pytest.raises(CannotReplay, match=r"3 tables take at least 128 slots, not 127.*--cache-ratio"):
        cdlrm(trace, slots=16 * 8 - 1, look_ahead=2)
