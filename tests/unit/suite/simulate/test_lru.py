"""LRU does by the batch what its rule says of rows, told with a list."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, Step, assert_counts, setting, traces

from suite.simulate.models.lru import LruModel


def told(trace: ListedTrace, slots: int) -> list[Step]:
    """A list of cached rows, the next to leave first."""
    cached: list[int] = []
    steps = []
    for index in range(trace.length):
        rows = entering = trace.distinct(index)
        missing = [row for row in rows if row not in cached]
        if len(rows) > slots:  # only free slots are filled, the others are trained past the cache
            entering = [row for row in rows if row in cached or row in missing[: slots - len(cached)]]
        kept = [*(row for row in cached if row not in entering), *entering]
        kept = kept[max(0, len(kept) - slots) :]
        steps.append(Step(set(missing), len(missing), len(missing) + len(cached) - len(kept)))
        cached = kept
    return steps


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trace=traces(), slots=st.integers(1, 60), counted_from=st.integers(0, 3))
def test_the_model_equals_a_list(trace, slots, counted_from):
    slots = min(slots, trace.rows)
    assert_counts(LruModel(setting(trace, slots, min(counted_from, trace.length)), {}), told(trace, slots))
