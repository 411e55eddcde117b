"""What the tests of bounds share: rows written out batch by batch, and what models and planners make of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from suite.simulate.models.bounds.belady import BeladyModel
from suite.simulate.models.bounds.windowed import WindowedModel
from suite.simulate.models.model import CacheModel, Setting, Span, Tally, replay
from suite.simulate.traces.trace import Int64s, Trace, replayed
from systems.freq_cache.planner.planner import Ids, Planner
from systems.freq_cache.planner.policy import level_of

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Written = Sequence[Sequence[int]]
"""Batches as lists of rows, repeats welcome."""


class RowTrace(Trace):
    """Rows written out batch by batch; the first half of them is one table, the rest another."""

    name = "rows"

    def __init__(self, rows: int, batches: Written, frequencies: Sequence[int] | None = None) -> None:
        self.half = rows // 2
        self.tables = (("a", self.half), ("b", rows - self.half))
        self.batches = batches
        self.length = len(batches)
        self.batch_lookups = max(map(len, batches), default=0)
        self.known = np.array(range(rows) if frequencies is None else frequencies, np.int64)

    def ids(self, index: int) -> Ids:
        a = [row for row in self.batches[index] if row < self.half]
        b = [row - self.half for row in self.batches[index] if row >= self.half]
        return Ids(np.array(a + b, np.int64), np.array([len(a), len(a) + len(b)], np.int64), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        return [self.known[: self.half], self.known[self.half :]]

    def start(self, warm: str, slots: int) -> frozenset[int]:
        """The rows that a cache may start with."""
        levels = [level_of(int(frequency)) for frequency in self.known]
        lowest = {"off": 1 << 30, "any": 0, "frequent": sorted(levels)[-min(slots, self.rows)]}[warm]
        return frozenset(row for row in range(self.rows) if levels[row] >= lowest)

    @property
    def sets(self) -> list[frozenset[int]]:
        return [frozenset(batch) for batch in self.batches]


def batches_of(rows: int, *, most: int, longest: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, rows - 1), max_size=longest), min_size=1, max_size=most)


def setting_of(trace: Trace, *, slots: int, counted_from: int = 0) -> Setting:
    return Setting(trace=trace, span=Span(counted_from=counted_from, stop=trace.length), slots=slots)


def belady(
    trace: Trace, *, slots: int, bypass: str = "off", warm: str = "frequent", counted_from: int = 0
) -> tuple[BeladyModel, Tally]:
    model = BeladyModel(setting_of(trace, slots=slots, counted_from=counted_from), {"bypass": bypass, "warm": warm})
    return model, replay(model)


def windowed(trace: Trace, *, slots: int, look_ahead: int, warm: str = "off") -> WindowedModel:
    return WindowedModel(setting_of(trace, slots=slots), {"look_ahead": str(look_ahead), "warm": warm})


def by_batch(model: CacheModel) -> tuple[list[int], list[int]]:
    """Misses and rows written back of every batch."""
    misses, back = [], []
    for batch in replayed(model.setting.trace, 0, model.setting.span.stop):
        tally = Tally.of(model.setting.trace)
        model.step(batch, tally)
        misses.append(tally.unique_misses)
        back.append(tally.rows_written_back)
    return misses, back


def policy_misses(trace: RowTrace, planner: Planner, *, look_ahead: int, warm: bool, counted_from: int = 0) -> int:
    """Counted misses of a planner that knows so many batches behind the one that it plans."""
    if warm:
        planner.warm_up()
    misses = 0
    announced = 0
    for number in range(trace.length):
        while announced < min(number + look_ahead + 1, trace.length):
            planner.announce(trace.ids(announced), changes=True)
            announced += 1
        plan = planner.plan()
        misses += plan.unique_misses if number >= counted_from else 0
    return misses
