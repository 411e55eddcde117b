"""ColossalAI's cache, cDLRM's and a hot set do what sorts over all slots, sets told one by one and a set do."""

import pytest
from brute_force_published import BruteForceCDLRM, BruteForceColossalAI, TooManyRows, hot_set
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, assert_counts, setting, skewed_trace, traces

from suite.simulate.models.cdlrm import CDLRMModel, most_sets, taken_for_prime
from suite.simulate.models.colossalai import ColossalAIModel
from suite.simulate.models.fae import HotSetModel
from suite.simulate.models.model import CannotReplay, replay

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
