"""Streams at published table sizes and far ends: nothing grows with rows or with the index of a batch."""

import tracemalloc

import pytest

from tests.unit.workloads.produced import equal
from workloads.batch import Split
from workloads.streams.synthetic import SyntheticWorkload


@pytest.mark.parametrize("dataset", ["criteo_1tb", "mlperf_dlrm_v2"])
def test_stream_keeps_no_rows_and_its_last_batch_takes_no_more_than_the_first_and_needs_none_before_it(dataset):
    # What is imported, compiled and read at first use is no stream's.
    SyntheticWorkload.create(dataset, batch_size=64, seed=1, max_rows=100_000).batch(0)
    tracemalloc.start()
    try:
        workload = SyntheticWorkload.create(dataset, batch_size=64, seed=1)
        assert tracemalloc.get_traced_memory()[0] < 400_000
        last, peaks = workload.batches(Split.TRAIN) - 1, []
        for index in (0, last):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            seen = workload.batch(index)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert equal(seen, SyntheticWorkload.create(dataset, batch_size=64, seed=1).batch(last))
