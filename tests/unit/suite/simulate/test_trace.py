"""Traces: batches by index, distinct rows, one table of several, replay in order."""

import numpy as np
from bag_streams import bagged
from hypothesis import given
from listed_traces import ListedTrace, setting, skewed_trace, traces

from suite.simulate.models.model import CacheModel, Tally, replay
from suite.simulate.trace import DistinctRows, Seen, WorkloadTrace


@given(trace=traces())
def test_distinct_rows_come_in_order_of_first_occurrence(trace: ListedTrace) -> None:
    distinct = DistinctRows(trace.rows)
    for index, batch in enumerate(trace.batches):
        rows, occurrences, _ = distinct.of(trace.ids(index))
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


def test_batches_are_announced_ahead_and_stepped_in_order() -> None:
    trace = skewed_trace(tables=(9,), batches=6, samples=3)
    log = []

    class Watching(CacheModel):
        look_ahead = 2

        def announce(self, batch: Seen) -> None:
            log.append(f"announce {batch.number}")

        def step(self, batch: Seen, tally: Tally | None) -> None:
            log.append(f"step {batch.number}{'' if tally is None else ' counted'}")

    told = []
    replay(Watching(setting(trace, 4, counted_from=4), {}), on_batches=told.append)
    assert log[:5] == ["announce 0", "announce 1", "announce 2", "step 0", "announce 3"]
    assert log[-2:] == ["step 4 counted", "step 5 counted"]
    assert len(log) == 12
    assert told == [1] * 6
