import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from workloads.batch import Split
from workloads.schema import DATASETS, MLPERF_DLRM_V2, MLPERF_HOTNESS, SCHEMAS
from workloads.streams.synthetic import BEST_AUROC, STREAMS, SyntheticWorkload


def create(dataset="criteo_kaggle", *, batch_size=256, seed=11, max_rows=100_000):
    return SyntheticWorkload.create(dataset, batch_size=batch_size, seed=seed, max_rows=max_rows)


def ids_of(workload, index):
    """Row ids of a training batch, by table."""
    features = workload.batch(index).features
    return {name: features[name].values() for name in features.keys()}  # noqa: SIM118 - no dict


def fingerprint(workload, index, split=Split.TRAIN):
    batch = workload.batch(index, split)
    return tuple(zlib.crc32(part.numpy().tobytes()) for part in (batch.features.values(), batch.dense, batch.labels))


@pytest.mark.parametrize("dataset", SCHEMAS)
def test_batch_has_the_shapes_and_types_of_the_schema(dataset):
    schema = SCHEMAS[dataset]
    workload = SyntheticWorkload.create(dataset, batch_size=100, seed=1)
    batch = workload.batch(3)
    assert (workload.name, workload.batch_size) == (dataset, 100)
    assert workload.tables == schema.categorical
    assert workload.epoch_rows() == schema.train_rows
    rows = (schema.train_rows, schema.validation_rows, schema.test_rows)
    assert [workload.batches(split) for split in Split] == [count // 100 for count in rows]
    assert batch.features.keys() == [name for name, _ in schema.categorical]
    assert batch.features.stride() == 100
    assert batch.dense.shape == (100, workload.dense_columns) == (100, len(schema.dense))
    assert (batch.dense.dtype, batch.labels.dtype, batch.features.values().dtype) == (
        torch.float32, torch.float32, torch.int64,
    )  # fmt: skip
    assert set(batch.labels.unique().tolist()) <= {0.0, 1.0}
    for (name, rows), length in zip(workload.tables, schema.bag_lengths, strict=True):
        bags = batch.features[name]
        assert bags.lengths().tolist() == [length] * 100
        assert 0 <= int(bags.values().min()) <= int(bags.values().max()) < rows


@pytest.mark.parametrize(
    ("dataset", "ids", "dense"),
    [
        ("criteo_kaggle", 2018234260, 1650273883),
        ("avazu", 118918488, 4006503214),
        ("criteo_1tb", 262475710, 441549640),
        ("mlperf_dlrm_v2", 2136506198, 2767021833),
        ("criteo_kaggle@drift", 2908735747, 1650273883),
        ("mlperf_dlrm_v2@drift", 3033652604, 2767021833),
    ],
)
def test_stream_is_the_one_that_earlier_releases_drew(dataset, ids, dense):
    assert fingerprint(create(dataset, batch_size=64), 5)[:2] == (ids, dense)


def test_no_batch_equals_another_and_splits_are_apart():
    workload = create(batch_size=32)
    seen = {fingerprint(workload, index, split)[0] for split in Split for index in range(40)}
    assert len(seen) == 3 * 40
    assert fingerprint(create(batch_size=32, seed=12), 0)[0] not in seen


@pytest.mark.parametrize("dataset", SCHEMAS)
def test_click_rate_and_auroc_of_the_stream_are_the_planted_ones(dataset):
    workload = create(dataset, batch_size=20_000)
    labels = torch.cat([workload.batch(index, Split.TEST).labels for index in range(3)])
    samples = [workload.draw(STREAMS[Split.TEST], index, 20_000) for index in range(3)]
    probabilities = torch.from_numpy(np.concatenate([workload._planted.probabilities(one) for one in samples]))
    assert float(probabilities.mean()) == pytest.approx(SCHEMAS[dataset].ctr, abs=0.004)
    assert float(labels.mean()) == pytest.approx(SCHEMAS[dataset].ctr, abs=0.01)
    assert float(binary_auroc(probabilities.float(), labels.int())) == pytest.approx(workload.best_auroc, abs=0.03)
    assert workload.best_auroc == pytest.approx(BEST_AUROC[dataset], abs=1e-3)


@pytest.mark.parametrize("dataset", DATASETS)
def test_dense_features_alone_rank_far_worse_than_the_ids(dataset):
    workload = create(dataset, batch_size=20_000)
    samples = workload.draw(STREAMS[Split.TRAIN], 0, 20_000)
    without_ids = workload._planted.probabilities(replace(samples, ranks=np.zeros_like(samples.ranks)))
    labels = workload.batch(0).labels.int()
    assert 0.55 < float(binary_auroc(torch.from_numpy(without_ids).float(), labels)) < 0.7


@pytest.mark.parametrize(
    ("dataset", "columns", "share"),
    [
        ("criteo_kaggle", ("C3", "C4", "C12", "C16", "C21", "C24"), 0.0331),
        ("criteo_1tb", ("C14", "C16", "C17", "C23"), 0.4204),
        ("avazu", ("site_id", "site_domain", "site_category"), 0.3778),
        ("avazu", ("app_id", "app_domain", "app_category", "device_id"), 0.6222),
    ],
)
def test_columns_of_a_group_go_missing_together(dataset, columns, share):
    workload = create(dataset, batch_size=20_000)
    ids = ids_of(workload, 0)
    missing = {name: missing_id(workload, name) for name in columns}
    absent = torch.stack([ids[name] == missing[name] for name in columns])
    assert absent[:, absent[0]].all()
    assert not absent[:, ~absent[0]].all(1).any()
    assert float(absent[0].float().mean()) == pytest.approx(share, abs=0.012)


def missing_id(workload, table):
    number = list(dict(workload.tables)).index(table)
    return int(workload._scrambler.table_ids(number, np.zeros(1, np.int64))[0])


@pytest.mark.parametrize("dataset", ["criteo_kaggle", "avazu", "mlperf_dlrm_v2"])
def test_frequencies_are_what_the_stream_draws(dataset):
    workload, samples = create(dataset, batch_size=20_000, max_rows=20_000), 3 * 20_000
    drawn, lengths = [ids_of(workload, index) for index in range(3)], SCHEMAS[dataset].bag_lengths
    for (name, frequencies), length in zip(workload.frequencies().items(), lengths, strict=True):
        assert (frequencies.dtype, frequencies.shape) == (torch.int64, (dict(workload.tables)[name],))
        assert int(frequencies.sum()) == pytest.approx(workload.epoch_rows() * length, rel=1e-3)
        expected = frequencies.double() / workload.epoch_rows() * samples
        ids = torch.cat([batch[name] for batch in drawn])
        counted = torch.bincount(ids, minlength=frequencies.numel()).double()
        known = expected > 5
        standard = (counted - expected)[known] / (expected[known] * (1 + expected[known] / samples)).sqrt()
        assert float(standard.abs().max()) < 6.5, name


def test_max_rows_caps_large_tables_and_leaves_small_ones():
    workload = create(max_rows=1_000_000)
    sizes = dict(workload.tables)
    cap = max(sizes.values())
    assert sizes == {name: min(rows, cap) for name, rows in SCHEMAS["criteo_kaggle"].categorical}
    assert 1_000_000 - len(sizes) <= sum(sizes.values()) <= 1_000_000


@pytest.mark.parametrize("cap", [1, 11])
@pytest.mark.parametrize("dataset", SCHEMAS)
def test_shrunk_copy_stays_within_its_tables(dataset, cap):
    workload = create(dataset).shrunk(max_table_rows=cap, batch_size=128)
    assert workload.batch_size == 128
    assert workload.tables == tuple((name, min(rows, cap)) for name, rows in SCHEMAS[dataset].categorical)
    found, frequencies = ids_of(workload, 0), workload.frequencies()
    assert sum(ids.numel() for ids in found.values()) == workload.batch_lookups
    for (name, rows), length in zip(workload.tables, SCHEMAS[dataset].bag_lengths, strict=True):
        assert 0 <= int(found[name].min()) <= int(found[name].max()) < rows, name
        assert int(frequencies[name].sum()) == pytest.approx(workload.epoch_rows() * length, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "movielens"}, "'movielens'.*criteo_kaggle, avazu, criteo_1tb"),
        ({"dataset": "avazu@fashion"}, "unknown track 'fashion': choose one of drift, or leave out the @"),
        ({"dataset": "avazu@"}, "unknown track ''"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"max_rows": 25}, "max_rows is 25.*52 rows"),
    ],
)
def test_impossible_argument_is_refused_with_value_and_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        create(**arguments)


@pytest.mark.parametrize("index", [-1, 3_274_331 // 256])
def test_index_outside_the_split_is_refused(index):
    workload = create()
    with pytest.raises(IndexError, match=f"batch {index} of the test split .* 12790 batches"):
        workload.batch(index, Split.TEST)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_largest_seeds_give_streams_of_their_own():
    seeds = (0, 2**63, 2**64 - 2, 2**64 - 1)
    assert len({fingerprint(create(seed=seed), 0)[0] for seed in seeds}) == len(seeds)


# Bags


def test_mlperf_tables_and_bags_are_the_benchmarks():
    assert MLPERF_DLRM_V2.table_rows == 204_184_588
    assert max(rows for _, rows in MLPERF_DLRM_V2.categorical) == 40_000_000
    assert (len(MLPERF_HOTNESS), sum(MLPERF_HOTNESS), max(MLPERF_HOTNESS)) == (26, 214, 100)


# Tracks by name


@pytest.mark.parametrize("dataset", SCHEMAS)
def test_any_dataset_drifts_under_its_full_name_and_the_seed_changes_how(dataset):
    plain, tracked, other = create(dataset), create(f"{dataset}@drift"), create(f"{dataset}@drift", seed=4)
    shrunk = tracked.shrunk(max_table_rows=100, batch_size=16)
    assert shrunk.name == tracked.name == f"{dataset}@drift"
    for one in (tracked, shrunk):
        for (_, rows), ids in zip(one.tables, ids_of(one, 5).values(), strict=True):
            assert 0 <= int(ids.min()) <= int(ids.max()) < rows
    middle = plain.batches(Split.TRAIN) // 2
    assert len({fingerprint(one, middle)[0] for one in (plain, tracked, other)}) == 3
    assert fingerprint(plain, middle)[1] == fingerprint(tracked, middle)[1], "dense features know no track"
