import zlib

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from workloads.batch import Split
from workloads.schema import DATASETS as SCHEMAS
from workloads.streams.synthetic import BEST_AUROC, SyntheticWorkload

DATASETS = list(SCHEMAS)


def create(dataset="criteo_kaggle", *, batch_size=256, seed=11, max_rows=100_000):
    return SyntheticWorkload.create(dataset, batch_size=batch_size, seed=seed, max_rows=max_rows)


def ids_of(workload, index, split=Split.TRAIN):
    return workload.batch(index, split).features.values().view(len(workload.tables), -1)


def fingerprint(workload, index, split=Split.TRAIN):
    batch = workload.batch(index, split)
    return tuple(zlib.crc32(part.numpy().tobytes()) for part in (batch.features.values(), batch.dense, batch.labels))


@pytest.mark.parametrize("dataset", DATASETS)
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
    for table, (_, rows) in zip(batch.features.values().view(-1, 100), workload.tables, strict=True):
        assert 0 <= int(table.min()) <= int(table.max()) < rows


@pytest.mark.parametrize(
    ("dataset", "ids", "dense"),
    [
        ("criteo_kaggle", 2018234260, 1650273883),
        ("avazu", 118918488, 4006503214),
        ("criteo_1tb", 262475710, 441549640),
    ],
)
def test_stream_is_the_one_that_earlier_releases_drew(dataset, ids, dense):
    assert fingerprint(create(dataset, batch_size=64), 5)[:2] == (ids, dense)


def test_no_batch_equals_another_and_splits_are_apart():
    workload = create(batch_size=32)
    seen = {fingerprint(workload, index, split)[0] for split in Split for index in range(40)}
    assert len(seen) == 3 * 40
    assert fingerprint(create(batch_size=32, seed=12), 0)[0] not in seen


@pytest.mark.parametrize("dataset", DATASETS)
def test_click_rate_and_auroc_of_the_stream_are_the_planted_ones(dataset):
    workload = create(dataset, batch_size=20_000)
    for split in (Split.TRAIN, Split.TEST):
        labels = torch.cat([workload.batch(index, split).labels for index in range(4)])
        probabilities = torch.cat([workload.probabilities(index, split) for index in range(4)])
        assert float(probabilities.mean()) == pytest.approx(SCHEMAS[dataset].ctr, abs=0.004)
        assert float(labels.mean()) == pytest.approx(SCHEMAS[dataset].ctr, abs=0.01)
        empirical = float(binary_auroc(probabilities.float(), labels.int()))
        assert empirical == pytest.approx(workload.best_auroc, abs=0.025)
    assert workload.best_auroc == pytest.approx(BEST_AUROC[dataset], abs=1e-3)


@pytest.mark.parametrize(
    ("dataset", "columns", "share"),
    [
        ("criteo_kaggle", ("C3", "C4", "C12", "C16", "C21", "C24"), 0.0331),
        ("criteo_1tb", ("C14", "C16", "C17", "C23"), 0.4204),
    ],
)
def test_columns_of_a_group_go_missing_together(dataset, columns, share):
    workload = create(dataset, batch_size=20_000)
    ids = dict(zip(dict(workload.tables), ids_of(workload, 0), strict=True))
    missing = {name: missing_id(workload, name) for name in columns}
    absent = torch.stack([ids[name] == missing[name] for name in columns])
    assert torch.equal(absent.all(0), absent.any(0))
    assert float(absent[0].float().mean()) == pytest.approx(share, abs=0.012)


def missing_id(workload, table):
    number = list(dict(workload.tables)).index(table)
    return int(workload._scrambler.table_ids(number, np.zeros(1, np.int64))[0])


def test_avazu_sample_is_either_site_or_app_traffic():
    workload = create("avazu", batch_size=20_000)
    ids = dict(zip(dict(workload.tables), ids_of(workload, 0), strict=True))
    default = {name: ids[name] == missing_id(workload, name) for name in ids}
    app = default["site_id"]
    assert float(app.float().mean()) == pytest.approx(0.3778, abs=0.012)
    assert torch.equal(default["app_id"], ~app)
    for name in ("site_domain", "site_category"):
        assert bool(default[name][app].all())
        assert not bool(default[name][~app].all())
    for name in ("app_domain", "app_category", "device_id"):
        assert bool(default[name][~app].all())
        assert not bool(default[name][app].all())


@pytest.mark.parametrize("dataset", ["criteo_kaggle", "avazu"])
def test_frequencies_are_what_the_stream_draws(dataset):
    workload = create(dataset, batch_size=20_000, max_rows=20_000)
    drawn = torch.cat([ids_of(workload, index) for index in range(5)], dim=1)
    for (name, frequencies), ids, (_, rows) in zip(workload.frequencies().items(), drawn, workload.tables, strict=True):
        assert (frequencies.dtype, frequencies.shape) == (torch.int64, (rows,))
        assert int(frequencies.sum()) == pytest.approx(workload.epoch_rows(), rel=1e-3)
        expected = frequencies.double() / workload.epoch_rows() * ids.numel()
        counted = torch.bincount(ids, minlength=rows).double()
        known = expected > 5
        standard = (counted - expected)[known] / expected[known].sqrt()
        assert float(standard.abs().max()) < 6.0, name


def test_max_rows_caps_large_tables_and_leaves_small_ones():
    workload = create(max_rows=1_000_000)
    sizes = dict(workload.tables)
    cap = max(sizes.values())
    assert sizes == {name: min(rows, cap) for name, rows in SCHEMAS["criteo_kaggle"].categorical}
    assert 1_000_000 - len(sizes) <= sum(sizes.values()) <= 1_000_000


@pytest.mark.parametrize("cap", [1, 11])
@pytest.mark.parametrize("dataset", DATASETS)
def test_shrunk_copy_stays_within_its_tables(dataset, cap):
    workload = create(dataset).shrunk(max_table_rows=cap, batch_size=128)
    assert workload.batch_size == 128
    assert workload.tables == tuple((name, min(rows, cap)) for name, rows in SCHEMAS[dataset].categorical)
    for ids, (name, rows) in zip(ids_of(workload, 0), workload.tables, strict=True):
        assert 0 <= int(ids.min()) <= int(ids.max()) < rows, name
    for frequencies in workload.frequencies().values():
        assert int(frequencies.sum()) == pytest.approx(workload.epoch_rows(), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "movielens"}, "'movielens'.*criteo_kaggle, avazu, criteo_1tb"),
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
    with pytest.raises(IndexError, match=f"batch {index} of the test split"):
        workload.batch(index, Split.TEST)
    with pytest.raises(IndexError, match="12790 batches"):
        workload.probabilities(index, Split.TEST)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_largest_seeds_give_streams_of_their_own():
    seeds = (0, 2**63, 2**64 - 2, 2**64 - 1)
    assert len({fingerprint(create(seed=seed), 0)[0] for seed in seeds}) == len(seeds)
