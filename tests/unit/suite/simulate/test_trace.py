"""Traces: batches by index, distinct rows, frequencies."""

import numpy as np
from bag_streams import bagged
from hypothesis import given
from listed_traces import ListedTrace, traces

from suite.simulate.trace import DistinctRows, SomeTables, WorkloadTrace


@given(trace=traces())
def test_distinct_rows_come_in_order_of_first_occurrence(trace: ListedTrace) -> None:
    distinct = DistinctRows(trace.rows)
    for index, batch in enumerate(trace.batches):
        rows, occurrences = distinct.of(trace.ids(index))
        assert rows.tolist() == list(dict.fromkeys(batch))
        assert occurrences.tolist() == [batch.count(row) for row in rows.tolist()]


def test_workload_trace_has_the_ids_and_frequencies_of_its_workload() -> None:
    workload = bagged(batch_size=5, seed=1, max_rows=2000)
    trace = WorkloadTrace(workload, prefix=0.5)
    parts = workload.batch(7).features.to_dict()
    ids = trace.ids(7)
    for table, (name, _) in enumerate(trace.tables):
        begin = ids.ends[table - 1] if table else 0
        assert ids.values[begin : ids.ends[table]].tolist() == parts[name].values().tolist()
    assert trace.table_starts.tolist() == np.cumsum([0, *(rows for _, rows in trace.tables)])[:-1].tolist()
    expected = workload.frequencies(0.5)
    for (name, _), found in zip(trace.tables, trace.frequencies(), strict=True):
        assert found.tolist() == expected[name].tolist()


def test_some_tables_have_their_own_ids_and_frequencies_in_the_order_named() -> None:
    trace = ListedTrace.of_ids([7, 3, 9], [[[6, 0], [2], [8]], [[], [1, 1], [4, 0]]], range(19))
    some = SomeTables(trace, ["t2", "t0"])
    assert some.tables == (("t2", 9), ("t0", 7))
    assert [np.split(some.ids(n).values, some.ids(n).ends[:-1])[1].tolist() for n in (0, 1)] == [[6, 0], []]
    assert [some.ids(n).values.tolist() for n in (0, 1)] == [[8, 6, 0], [4, 0]]
    assert [counts.tolist() for counts in some.frequencies()] == [[*range(10, 19)], [*range(7)]]
