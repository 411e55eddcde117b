"""Batches for planners, and the planner beside the brute-force one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from brute_force_planner import BruteForcePlan, BruteForcePlanner, ByFrequency, ByRecency, ByUse, Ranking
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from systems.freq_cache.cache.plan import Ids, Plan
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LFU, LRU, Policy, StaticFrequency

POLICIES = ("static", "lfu", "lru")
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Batch = Sequence[Sequence[int]]
"""The ids of every feature."""


def ids_of(batch: Batch, starts: Sequence[int]) -> Ids:
    values = [i for feature in batch for i in feature]
    ends = np.cumsum([len(feature) for feature in batch], dtype=np.int64)
    return Ids(np.array(values, np.int64), ends, np.array(starts, np.int64))


def same_policies(name: str, frequencies: Sequence[int]) -> tuple[Policy, Ranking]:
    if name == "static":
        half = len(frequencies) // 2  # two tables
        parts = [np.array(part, np.int64) for part in (frequencies[:half], frequencies[half:])]
        return StaticFrequency(parts), ByFrequency(frequencies)
    return (LFU(len(frequencies)), ByUse()) if name == "lfu" else (LRU(), ByRecency())


def assert_equal(plan: Plan, expected: BruteForcePlan) -> None:
    arrays = "rows", "missed", "inverse", "fetch_rows", "fetch_slots", "back_rows", "back_slots", "fetch_after"
    for name in arrays:
        assert getattr(plan, name).tolist() == getattr(expected, name), name
    assert (plan.batch, plan.overflow) == (expected.batch, expected.overflow)
    assert (plan.unique_ids, plan.unique_misses) == (len(expected.rows), sum(expected.missed))
    assert plan.lookup_misses == sum(expected.missed[i] for i in expected.inverse)
    assert np.maximum(plan.slots, -1).tolist() == expected.slots
    assert np.maximum(plan.slot_of_id, -1).tolist() == [expected.slots[i] for i in expected.inverse]


class Both:
    """A planner beside the brute-force one: whatever one is told, the other is, and they must answer alike."""

    def __init__(
        self, *, rows: int, slots: int, policy: tuple[Policy, Ranking], starts: Sequence[int] = (0,), batch_ids: int = 0
    ) -> None:
        self.starts = starts
        self.fast = Planner(rows=rows, slots=slots, policy=policy[0], batch_ids=batch_ids)
        self.slow = BruteForcePlanner(rows=rows, slots=slots, ranking=policy[1])

    def announce(self, batch: Batch, *, changes: bool = True) -> None:
        self.fast.announce(self.fast.distinct(ids_of(batch, self.starts)), changes=changes)
        self.slow.announce(linear(batch, self.starts), changes=changes)
        assert self.fast.announced == len(self.slow.announced)

    def plan(self) -> BruteForcePlan:
        plan, expected = self.fast.plan(), self.slow.plan()
        assert_equal(plan, expected)
        return expected

    def withdraw(self) -> None:
        self.fast.withdraw()
        self.slow.withdraw()
        assert self.fast.announced == 0

    def warm_up(self) -> None:
        agree(self.fast.warm_up(), self.slow.warm_up())

    def changed(self) -> None:
        agree(self.fast.changed(), self.slow.changed())

    def held(self, start: int, stop: int) -> None:
        agree(self.fast.held(start, stop), self.slow.held(start, stop))

    def written(self, slots: Sequence[int]) -> None:
        self.fast.written(np.array(slots, np.int32))
        self.slow.written(slots)


def agree(found: tuple[NDArray[np.int32], NDArray[np.int32]], expected: tuple[list[int], list[int]]) -> None:
    assert tuple(part.tolist() for part in found) == expected


def linear(batch: Batch, starts: Sequence[int]) -> list[int]:
    return [start + i for start, feature in zip(starts, batch, strict=True) for i in feature]


@dataclass(frozen=True)
class Step:
    """One batch, how many others are announced when it is planned, and what is done before that."""

    batch: Batch
    changes: bool
    ahead: int
    before: tuple[str, int, int] | None


@dataclass(frozen=True)
class Trace:
    rows: int
    slots: int
    starts: list[int]
    frequencies: list[int]
    steps: list[Step] = field(repr=False)


@st.composite
def traces(draw: st.DrawFn, *, most_rows: int = 14, most_ids: int = 8) -> Trace:
    tables = draw(st.lists(st.integers(1, most_rows), min_size=1, max_size=3))
    order = draw(st.lists(st.integers(0, len(tables) - 1), min_size=1, max_size=4).map(sorted))
    rows = sum(tables)
    features = [st.lists(st.integers(0, tables[at] - 1), max_size=most_ids) for at in order]
    before = st.tuples(
        st.sampled_from(["withdraw", "changed", "held", "written", "warm_up"]),
        st.integers(0, rows),
        st.integers(0, rows),
    )
    step = st.builds(
        Step,
        batch=st.tuples(*features),
        changes=st.booleans(),
        ahead=st.integers(0, 8),
        before=st.one_of(st.none(), st.none(), before),
    )
    return Trace(
        rows=rows,
        slots=draw(st.integers(1, rows)),
        starts=[sum(tables[:at]) for at in order],
        frequencies=draw(st.lists(st.integers(0, 6) | st.integers(0, 2**40), min_size=rows, max_size=rows)),
        steps=draw(st.lists(step, max_size=25)),
    )


def zipf_batches(rows: int, batches: int, most_ids: int, *, seed: int, skew: float = 1.5) -> list[Batch]:
    draw = random.Random(seed)
    found = []
    for _ in range(batches):
        count = draw.choice([0, 1, most_ids // 2, most_ids, most_ids])
        found.append([[int(rows * draw.random() ** (1 + skew)) for _ in range(count)]])
    return found


class TheirOwn(Policy):
    """A policy of somebody else: high row numbers are dear, by keys beyond those of the built-in policies."""

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def keys(
        self, rows: NDArray[np.int32], occurrences: NDArray[np.int32], *, batch: int, learn: bool
    ) -> NDArray[np.int32]:
        return (rows * self.scale).astype(np.int32)


class TheirOwnRanking(Ranking):
    def __init__(self, scale: int) -> None:
        self.scale = scale

    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        return {row: row * self.scale for row in occurrences}
