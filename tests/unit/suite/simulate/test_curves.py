import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, skewed_trace

from suite.simulate.curves import miss_curves
from suite.simulate.models.model import Span


def least_recent(trace, slots, span):
    """Unique misses, distinct rows and lookups of an LRU cache: a list, the next row to leave first."""
    cached, counts = [], np.zeros(3, np.int64)
    for number in range(span.stop):
        ids = trace.ids(number)
        rows = (ids.values + np.repeat(ids.starts, np.diff(ids.ends, prepend=0))).tolist()
        distinct, before = list(dict.fromkeys(rows)), set(cached)
        missed = [row for row in distinct if row not in before]
        others = [row for row in cached if row not in set(rows)]
        cached = others[max(len(others) + len(distinct) - slots, 0) :] + distinct
        if number >= span.counted_from:
            counts += (len(missed), len(distinct), len(rows))
    return counts.tolist()


def counters(curve, slots):
    return [curve.misses(slots), curve.unique_ids, curve.lookups]


sizes_and_batches = st.lists(st.integers(1, 14), min_size=1, max_size=3).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes),
        st.lists(
            st.tuples(*(st.lists(st.integers(0, size - 1), min_size=0, max_size=12) for size in sizes)),
            min_size=1,
            max_size=12,
        ),
    )
)


@settings(max_examples=10)
@given(sizes_and_batches, st.data())
def test_every_size_from_the_largest_batch_on_equals_a_cache_of_it_counter_for_counter(made, data):
    trace = ListedTrace.of_ids(*made)
    span = Span(counted_from=data.draw(st.integers(0, trace.length - 1)), stop=trace.length)
    curves = miss_curves(trace, span, per_table=True)
    for slots in range(max(1, curves.pooled.largest_batch), trace.rows + 2):
        assert counters(curves.pooled, slots) == least_recent(trace, slots, span)
    for table, curve in enumerate(curves.tables):
        for slots in range(max(1, curve.largest_batch), curve.rows + 2):
            assert counters(curve, slots) == least_recent(trace.only(table), slots, span)


def test_curves_stay_right_when_slots_of_a_stack_run_out_and_its_rows_are_numbered_anew():
    trace = skewed_trace(tables=[700, 3, 1500], batches=160, samples=600)
    span = Span(counted_from=20, stop=trace.length)
    curves = miss_curves(trace, span, per_table=True)
    assert curves.tables[2].unique_ids > 4 * 8192  # the slots of such a stack
    for slots in (curves.pooled.largest_batch, 1_200, 1_700, 2_203):
        assert counters(curves.pooled, slots) == least_recent(trace, slots, span)
    for slots in (600, 900, 1_400):
        assert counters(curves.tables[2], slots) == least_recent(trace.only(2), slots, span)
