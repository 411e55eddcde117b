"""Streams at published table sizes and far ends: nothing grows with rows or with the index of a batch."""

import tracemalloc

import pytest

from tests.unit.workloads.produced import equal
from workloads.batch import Split
from workloads.streams.synthetic import SyntheticWorkload

DATASETS = ["criteo_1tb", "mlperf_dlrm_v2"]


@pytest.fixture(scope="module")
def traced():
    # What is imported, compiled and read at first use is no stream's.
    for dataset in DATASETS:
        SyntheticWorkload.create(dataset, batch_size=64, seed=1, max_rows=100_000).batch(0)
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_stream_over_178_million_rows_keeps_no_more_than_one_over_a_thousandth():
    kept = []
    for max_rows in (None, 178_000):
        before, _ = tracemalloc.get_traced_memory()
        workload = SyntheticWorkload.create("criteo_1tb", batch_size=64, seed=1, max_rows=max_rows)
        kept.append(tracemalloc.get_traced_memory()[0] - before)
        del workload
    assert kept[0] < 1.5 * kept[1]
    assert kept[0] < 400_000


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("dataset", DATASETS)
def test_last_batch_of_an_epoch_takes_no_more_memory_than_the_first_and_needs_none_before_it(dataset):
    workload = SyntheticWorkload.create(dataset, batch_size=64, seed=1)
    last, peaks = workload.batches(Split.TRAIN) - 1, []
    for index in (0, last):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        seen = workload.batch(index)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    assert peaks[1] < 1.5 * peaks[0]
    assert equal(seen, SyntheticWorkload.create(dataset, batch_size=64, seed=1).batch(last))
