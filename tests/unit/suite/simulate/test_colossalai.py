"""The cache of ColossalAI does what a sort over all of its slots would."""

import pytest
from brute_force_published import BruteForceColossalAI, TooManyRows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, assert_counts, setting, traces

from suite.simulate.models.colossalai import ColossalAIModel
from suite.simulate.models.model import CannotReplay, replay

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
POLICIES = pytest.mark.parametrize("policy", ColossalAIModel.variants["policy"])


def model_of(trace: ListedTrace, *, slots: int, policy: str, counted_from: int = 0):
    return ColossalAIModel(setting(trace, slots, counted_from), {"policy": policy})


@POLICIES
@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_cache_equals_one_that_sorts_its_slots(policy, trace, slots, counted_from):
    slots, counted_from = min(slots, trace.rows), min(counted_from, trace.length)
    model = model_of(trace, slots=slots, policy=policy, counted_from=counted_from)
    try:
        steps = BruteForceColossalAI(trace, slots=slots, policy=policy).told()
    except TooManyRows:
        with pytest.raises(CannotReplay, match=f"the cache {slots} slots"):
            replay(model)
    else:
        assert_counts(model, steps, overflows=False)


@POLICIES
def test_batch_larger_than_the_cache_fails_as_its_assertion_does(policy):
    trace = ListedTrace([20], [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert replay(model_of(trace, slots=2, policy=policy)).batches == 4
    with pytest.raises(CannotReplay, match=r"batch 0 has 2 distinct rows, the cache 1 slots.*--cache-ratio"):
        replay(model_of(trace, slots=1, policy=policy))
