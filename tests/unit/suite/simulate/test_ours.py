"""The simulated cache of ours against the rules of its planner, told once more in lists and sets."""

from brute_force_planner import BruteForcePlanner, ByFrequency, ByRecency, ByUse
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, Step, assert_counts, setting, traces

from suite.simulate.models.ours import FreqCacheModel
from systems.freq_cache.pipeline import known_behind

RANKINGS = {"static": lambda trace: ByFrequency(trace.counts), "lfu": lambda _: ByUse(), "lru": lambda _: ByRecency()}


def model(trace: ListedTrace, slots: int, *, policy: str, look_ahead: int, counted_from: int = 0) -> FreqCacheModel:
    return FreqCacheModel(
        setting(trace, slots, counted_from), {"policy": policy, "look_ahead": str(look_ahead), "ram": "0"}
    )


def told(trace: ListedTrace, slots: int, *, policy: str, behind: int) -> list[Step]:
    planner = BruteForcePlanner(rows=trace.rows, slots=slots, ranking=RANKINGS[policy](trace))
    planner.warm_up()
    steps, beside = [], 0
    for index in range(trace.length + behind):
        if index < trace.length:
            planner.announce(trace.batches[index], changes=True)
        if index < behind:
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
    steps = told(trace, slots, policy=policy, behind=known_behind(look_ahead))
    simulated = model(
        trace, slots, policy=policy, look_ahead=look_ahead, counted_from=min(counted_from, trace.length - 1)
    )
    assert_counts(simulated, steps)
