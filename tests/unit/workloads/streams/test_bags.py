from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from bag_streams import bagged, bagged_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc

from workloads.batch import Batch, Split
from workloads.schema import MLPERF_DLRM_V2, MLPERF_HOTNESS, BagLaw
from workloads.streams.samples import bag_lengths
from workloads.streams.synthetic import SyntheticWorkload

LAWS = {"mlperf_dlrm_v2": MLPERF_DLRM_V2.bags, "bagged": bagged_schema().bags}


def create(dataset, *, batch_size=256, seed=11, max_rows=100_000):
    made = bagged if dataset == "bagged" else partial(SyntheticWorkload.create, dataset)
    return made(batch_size=batch_size, seed=seed, max_rows=max_rows)


def by_table(batch):
    """Lengths `[n]` and ids of every table."""
    keys = batch.features.keys()
    return {name: (batch.features[name].lengths(), batch.features[name].values()) for name in keys}


def draw_lengths(law, count, *, missing=0.0):
    generator = np.random.default_rng(1)
    shape = (len(law.longest), count)
    absent = generator.random(shape) < missing
    return bag_lengths(law, generator.random(shape), absent), absent


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


def test_batch_of_bags_whose_lengths_do_not_add_up_is_refused():
    with pytest.raises(ValueError, match="hold 3 ids together, but there are 2"):
        Batch.of(
            keys=["a"],
            ids=np.zeros(2, np.int64),
            lengths=np.array([[1, 2]]),
            dense=np.zeros((2, 1), np.float32),
            labels=np.zeros(2, np.float32),
        )


def test_lengths_follow_the_cut_geometric_law():
    law = BagLaw.geometric((1, 4, 16), times=3)
    assert law.longest == (1, 12, 48)
    lengths, _ = draw_lengths(law, 200_000)
    for row, longest, more, mean in zip(lengths, law.longest, law.more, law.mean, strict=True):
        assert (int(row.min()), int(row.max())) == (1, longest)
        assert row.mean() == pytest.approx(mean, rel=0.01)
        for length in range(1, longest):
            assert (row > length).mean() == pytest.approx(more**length, abs=0.006)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"longest": (1, 2)}, "2 columns and more has 1"),
        ({"longest": (0,)}, "has 0 ids"),
        ({"more": (1.5,)}, "runs from 1.5 to 1.5"),
        ({"more": (-0.5,)}, "probability"),
    ],
)
def test_impossible_law_of_lengths_is_refused_with_its_value(change, message):
    with pytest.raises(ValueError, match="mlperf_dlrm_v2: bags are given for 2 columns, there are 26"):
        replace(MLPERF_DLRM_V2, bags=BagLaw.fixed((1, 2)))
    with pytest.raises(ValueError, match=message):
        BagLaw(**({"longest": (3,), "more": (0.5,), "missing_is_empty": True} | change))


def test_missing_values_are_empty_bags_only_where_the_law_says_so():
    empties, missing = draw_lengths(BagLaw.geometric((1, 4), times=3), 1000, missing=0.3)
    assert np.array_equal(empties == 0, missing)
    fixed, _ = draw_lengths(BagLaw.fixed((1, 4)), 1000, missing=0.3)
    assert np.array_equal(fixed, np.repeat([[1], [4]], 1000, axis=1))


def test_mlperf_tables_and_bags_are_the_benchmarks():
    assert MLPERF_DLRM_V2.table_rows == 204_184_588
    assert max(rows for _, rows in MLPERF_DLRM_V2.categorical) == 40_000_000
    assert (len(MLPERF_HOTNESS), sum(MLPERF_HOTNESS), max(MLPERF_HOTNESS)) == (26, 214, 100)
    batch = SyntheticWorkload.create("mlperf_dlrm_v2", batch_size=50, seed=1).batch(2)
    for (lengths, ids), hotness, (_, rows) in zip(
        by_table(batch).values(), MLPERF_HOTNESS, MLPERF_DLRM_V2.categorical, strict=True
    ):
        assert lengths.tolist() == [hotness] * 50
        assert 0 <= int(ids.min()) <= int(ids.max()) < rows


def test_bags_are_as_long_as_their_law_says_and_empty_together_where_values_are_missing():
    batch = create("bagged", batch_size=20_000).batch(0)
    assert float(batch.features.lengths().double().mean()) == pytest.approx(8.76, abs=0.1)
    assert int(batch.features.lengths().max()) == 64
    lengths = {name: found for name, (found, _) in by_table(batch).items()}
    for columns, share in (
        (("C3", "C4", "C12", "C16", "C21", "C24"), 0.0331),
        (("C19", "C20", "C25", "C26"), 0.4529),
        (("C22",), 0.8173),
    ):
        empty = torch.stack([lengths[name] == 0 for name in columns])
        assert torch.equal(empty.all(0), empty.any(0))
        assert float(empty[0].float().mean()) == pytest.approx(share, abs=0.012)
    assert int(lengths["C1"].min()) == 1, "C1 is never missing"


@pytest.mark.parametrize("dataset", LAWS)
def test_frequencies_are_the_expected_accesses_of_all_ids_of_all_bags(dataset):
    workload = create(dataset, batch_size=20_000, max_rows=20_000)
    batches = [by_table(workload.batch(index)) for index in range(3)]
    samples = 3 * 20_000
    for name, frequencies in workload.frequencies().items():
        ids = torch.cat([batch[name][1] for batch in batches])
        expected = frequencies.double() / workload.epoch_rows() * samples
        counted = torch.bincount(ids, minlength=frequencies.numel()).double()
        assert float(counted.sum()) == pytest.approx(float(expected.sum()), rel=0.02), name
        known = expected > 5
        # Lengths of bags and their ids are independent, so a row's count varies little more than a Poisson number.
        standard = (counted - expected)[known] / (expected[known] * (1 + expected[known] / samples)).sqrt()
        assert float(standard.abs().max()) < 6.5, name


@pytest.mark.parametrize("dataset", LAWS)
def test_click_rate_and_auroc_are_the_planted_ones(dataset):
    workload = create(dataset, batch_size=20_000)
    labels = torch.cat([workload.batch(index, Split.TEST).labels for index in range(3)])
    probabilities = torch.cat([workload.probabilities(index, Split.TEST) for index in range(3)])
    assert float(labels.mean()) == pytest.approx(workload._schema.ctr, abs=0.01)
    assert float(binary_auroc(probabilities.float(), labels.int())) == pytest.approx(workload.best_auroc, abs=0.03)
    assert workload.best_auroc == pytest.approx(0.80, abs=1e-3)


def test_every_id_of_a_bag_moves_the_label_and_not_the_first_alone():
    workload = create("mlperf_dlrm_v2", batch_size=2000)
    samples = workload._source.draw(0, 0, 2000)
    changed = samples.ranks.copy()
    start, stop = samples.starts[20], samples.starts[21]  # C21, 100 ids per bag
    bags = changed[start:stop].reshape(2000, 100)
    bags[:, 1:] = 0
    probabilities = workload._planted.probabilities(replace(samples, ranks=changed))
    assert (probabilities != workload._planted.probabilities(samples)).mean() > 0.99


@pytest.mark.parametrize(("dataset", "cap"), [("mlperf_dlrm_v2", 300), ("bagged", 1)])
def test_shrunk_copy_keeps_its_bags_and_stays_within_its_tables(dataset, cap):
    workload = create(dataset).shrunk(max_table_rows=cap, batch_size=64)
    found = by_table(workload.batch(0))
    assert sum(ids.numel() for _, ids in found.values()) <= workload.batch_lookups
    for (name, rows), longest in zip(workload.tables, LAWS[dataset].longest, strict=True):
        lengths, ids = found[name]
        assert rows <= cap
        assert int(lengths.max()) <= longest
        assert ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < rows
