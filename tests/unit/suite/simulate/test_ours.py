"""The simulated cache of ours against the rules of its planner, told once more in lists and sets."""

import pytest
from brute_force_planner import BruteForcePlanner, ByFrequency, ByRecency, ByUse
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, Step, assert_counts, setting, skewed_trace, traces

from suite.simulate.models.model import replay
from suite.simulate.models.ours import FreqCacheModel

RANKINGS = {"static": lambda trace: ByFrequency(trace.counts), "lfu": lambda _: ByUse(), "lru": lambda _: ByRecency()}


def model(trace: ListedTrace, slots: int, *, policy: str, look_ahead: int, counted_from: int = 0) -> FreqCacheModel:
    return FreqCacheModel(
        setting(trace, slots, counted_from), {"policy": policy, "look_ahead": str(look_ahead), "ram": "0"}
    )


def told(trace: ListedTrace, slots: int, *, policy: str, known_behind: int) -> list[Step]:
    planner = BruteForcePlanner(rows=trace.rows, slots=slots, ranking=RANKINGS[policy](trace))
    planner.warm_up()
    steps, beside = [], 0
    for index in range(trace.length + known_behind):
        if index < trace.length:
            planner.announce(trace.batches[index], changes=True)
        if index < known_behind:
            continue
        plan = planner.plan()
        missed = {row for row, absent in zip(plan.rows, plan.missed, strict=True) if absent}
        back, beside = len(plan.back_rows) + beside, sum(slot < 0 for slot in plan.slots)
        steps.append(Step(missed, len(plan.fetch_rows) + beside, back))
    return steps


@settings(max_examples=40)
@given(
    trace=traces(),
    slots=st.integers(1, 24),
    policy=st.sampled_from(list(RANKINGS)),
    look_ahead=st.sampled_from([0, 1, 2, 4]),
    counted_from=st.integers(0, 4),
)
def test_counters_follow_the_rules(
    trace: ListedTrace, slots: int, policy: str, look_ahead: int, counted_from: int
) -> None:
    steps = told(trace, slots, policy=policy, known_behind=max(0, look_ahead - 1))
    simulated = model(
        trace, slots, policy=policy, look_ahead=look_ahead, counted_from=min(counted_from, trace.length - 1)
    )
    assert_counts(simulated, steps)


def test_caches_of_several_sizes_share_the_ranks_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = skewed_trace(tables=(20, 30), batches=10, samples=12)
    first = replay(model(trace, 10, policy="static", look_ahead=0))
    monkeypatch.setattr(trace, "frequencies", lambda: pytest.fail("asked for once more"))
    second = replay(model(trace, 10, policy="static", look_ahead=0))
    assert first.unique_misses == second.unique_misses


def test_counters_follow_the_rules_over_many_batches() -> None:
    trace = skewed_trace(tables=(60, 90, 7), batches=30, samples=40)
    for policy in RANKINGS:
        assert_counts(model(trace, 70, policy=policy, look_ahead=4), told(trace, 70, policy=policy, known_behind=3))
