import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc

from workloads.batch import Batch, Split
from workloads.schema import MLPERF_DLRM_V2, MLPERF_HOTNESS
from workloads.streams.synthetic import SyntheticWorkload


def create(*, batch_size=256, seed=11, max_rows=100_000):
    return SyntheticWorkload.create("mlperf_dlrm_v2", batch_size=batch_size, seed=seed, max_rows=max_rows)


def ids_by_table(batch):
    return {name: batch.features[name].values() for name in batch.features.keys()}  # noqa: SIM118 - no dict


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4))
def test_batch_of_bags_gives_every_sample_its_own_ids(lengths):
    counts = np.array(lengths, dtype=np.int64)
    ids = np.arange(counts.sum(), dtype=np.int64)
    keys = [f"t{number}" for number in range(len(lengths))]
    batch = Batch.of(
        keys=keys, ids=ids, lengths=counts, dense=np.zeros((3, 1), np.float32), labels=np.zeros(3, np.float32)
    )
    rest = iter(range(len(ids)))
    for key, row in zip(keys, lengths, strict=True):
        bags = batch.features[key].to_dense()
        assert [bag.tolist() for bag in bags] == [[next(rest) for _ in range(count)] for count in row]
    assert batch.features.stride() == 3


def test_mlperf_tables_and_bags_are_the_benchmarks():
    assert MLPERF_DLRM_V2.table_rows == 204_184_588
    assert max(rows for _, rows in MLPERF_DLRM_V2.categorical) == 40_000_000
    assert (len(MLPERF_HOTNESS), sum(MLPERF_HOTNESS), max(MLPERF_HOTNESS)) == (26, 214, 100)
    batch = create(batch_size=50, max_rows=None).batch(2)
    for (name, rows), hotness in zip(MLPERF_DLRM_V2.categorical, MLPERF_HOTNESS, strict=True):
        lengths, ids = batch.features[name].lengths(), batch.features[name].values()
        assert lengths.tolist() == [hotness] * 50
        assert 0 <= int(ids.min()) <= int(ids.max()) < rows


def test_frequencies_are_the_expected_accesses_of_all_ids_of_all_bags():
    workload = create(batch_size=20_000, max_rows=20_000)
    batches = [ids_by_table(workload.batch(index)) for index in range(3)]
    samples = 3 * 20_000
    for name, frequencies in workload.frequencies().items():
        ids = torch.cat([batch[name] for batch in batches])
        expected = frequencies.double() / workload.epoch_rows() * samples
        counted = torch.bincount(ids, minlength=frequencies.numel()).double()
        assert float(counted.sum()) == pytest.approx(float(expected.sum()), rel=0.02), name
        known = expected > 5
        standard = (counted - expected)[known] / (expected[known] * (1 + expected[known] / samples)).sqrt()
        assert float(standard.abs().max()) < 6.5, name


def test_click_rate_and_auroc_are_the_planted_ones():
    workload = create(batch_size=20_000)
    labels = torch.cat([workload.batch(index, Split.TEST).labels for index in range(3)])
    probabilities = torch.cat([workload.probabilities(index, Split.TEST) for index in range(3)])
    assert float(labels.mean()) == pytest.approx(MLPERF_DLRM_V2.ctr, abs=0.01)
    assert float(binary_auroc(probabilities.float(), labels.int())) == pytest.approx(workload.best_auroc, abs=0.03)
    assert workload.best_auroc == pytest.approx(0.80, abs=1e-3)


def test_every_id_of_a_bag_moves_the_label_and_not_the_first_alone():
    workload = create(batch_size=2000)
    samples = workload._source.draw(0, 0, 2000)
    before = workload._planted.probabilities(samples)
    bags = samples.ranks[samples.starts[20] : samples.starts[21]].reshape(2000, 100)  # C21, 100 ids per bag
    bags[:, 1:] = 0
    assert (workload._planted.probabilities(samples) != before).mean() > 0.99


def test_shrunk_copy_keeps_its_bags_and_stays_within_its_tables():
    workload = create().shrunk(max_table_rows=300, batch_size=64)
    found = ids_by_table(workload.batch(0))
    assert sum(ids.numel() for ids in found.values()) == workload.batch_lookups == 64 * 214
    for name, rows in workload.tables:
        assert rows <= 300
        assert 0 <= int(found[name].min()) <= int(found[name].max()) < rows
