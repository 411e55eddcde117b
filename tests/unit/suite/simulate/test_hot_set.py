"""A fixed hot set misses all other rows, and frequencies rank rows as a sort would."""

from brute_force_published import hot_set
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_traces import assert_counts, setting, traces

from suite.simulate.models.fae import HotSetModel

SETTINGS = settings(max_examples=25, deadline=None)
COUNTS = st.one_of(st.integers(0, 5), st.integers((1 << 16) - 3, (1 << 16) + 1), st.integers(0, 1 << 40))


@SETTINGS
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_hot_set_equals_a_set(trace, slots, counted_from):
    model = HotSetModel(setting(trace, slots, min(counted_from, trace.length)), {})
    assert_counts(model, hot_set(trace, slots))
