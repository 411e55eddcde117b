"""Frequencies of rows: counted or sketched, on the training split alone."""

import random
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec import KeyedJaggedTensor

from workloads.batch import Split
from workloads.errors import DataError
from workloads.frequency import FrequencySketch, sketched
from workloads.prepare.prepare import prepare
from workloads.prepared import PreparedWorkload

ROWS, TRAIN = 196, 168
BATCH = 7


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A tiny prepared dataset: 168 rows to train on, 14 each to validate and test."""
    base, draw = tmp_path_factory.mktemp("data"), random.Random(5)
    raw = [
        [draw.randrange(2), *(draw.randrange(9) for _ in range(13)), *(f"{draw.randrange(40):x}" for _ in range(26))]
        for _ in range(ROWS)
    ]
    (base / "train.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in raw))
    prepare("criteo_kaggle", [base / "train.txt"], out=base / "out")
    return base / "out" / "criteo_kaggle"


def with_other_rows(folder, copy, *, first, last, split="train"):
    """A copy of a dataset in which every id, dense value and label of some rows is another one."""
    shutil.copytree(folder, copy)
    workload = PreparedWorkload.open(folder, batch_size=1)
    for part in ("ids", "dense", "labels"):
        path = copy / f"{split}_{part}.npy"
        array = np.load(path)
        if part == "ids":
            array[first:last] = (array[first:last] + 1) % [rows for _, rows in workload.tables]
        else:
            array[first:last] = 1 - array[first:last]
        np.save(path, array)
    return PreparedWorkload.open(copy, batch_size=BATCH)


def same(left, right):
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("prefix", [0.01, 0.25, 0.5, 1.0])
def test_prefix_counts_are_those_of_its_rows(prepared, prefix):
    workload = PreparedWorkload.open(prepared, batch_size=1)
    rows = round(prefix * TRAIN)
    expected = {name: torch.zeros(count, dtype=torch.int64) for name, count in workload.tables}
    for index in range(rows):
        for name, bags in workload.batch(index).features.to_dict().items():
            expected[name][bags.values()] += 1
    assert same(workload.frequencies(prefix), expected)


def test_no_row_behind_the_prefix_and_none_of_validation_or_test_can_change_a_frequency(prepared, tmp_path):
    def found(workload):
        return workload.frequencies(0.25), sketched(workload, prefix=0.25, memory_bytes=10**6).accesses

    before = found(PreparedWorkload.open(prepared, batch_size=BATCH))
    outside = [("later", TRAIN // 4, TRAIN, "train"), ("validation", 0, 14, "validation"), ("test", 0, 14, "test")]
    for name, first, last, split in outside:
        after = found(with_other_rows(prepared, tmp_path / name, first=first, last=last, split=split))
        assert all(same(*pair) for pair in zip(before, after, strict=True)), name
    inside = found(with_other_rows(prepared, tmp_path / "inside", first=0, last=1))
    assert not any(same(*pair) for pair in zip(before, inside, strict=True))


def test_sketch_reads_training_batches_alone(prepared):
    class Watched(PreparedWorkload):
        def batch(self, index, split=Split.TRAIN):
            asked.append((index, split))
            return super().batch(index, split)

    asked, beats = [], []
    found = sketched(
        Watched.open(prepared, batch_size=BATCH), prefix=0.5, memory_bytes=10**6, on_batch=lambda: beats.append(1)
    )
    assert asked == [(index, Split.TRAIN) for index in range(12)]
    assert (found.samples, len(beats)) == (84, 12)


def test_folded_copy_folds_the_prefix_alike(prepared):
    small = PreparedWorkload.open(prepared, batch_size=BATCH).shrunk(max_table_rows=6, batch_size=BATCH)
    ids = torch.cat([small.batch(index).features["C5"].values() for index in range(12)])
    assert torch.equal(small.frequencies(0.5)["C5"], torch.bincount(ids, minlength=6))


@pytest.mark.parametrize("prefix", [0.0, -0.1, 1.01, float("nan")])
def test_prefix_out_of_range_is_refused(prepared, prefix):
    workload = PreparedWorkload.open(prepared, batch_size=BATCH)
    with pytest.raises(ValueError, match=r"prefix is .*: give a share of the training split, above 0 to 1"):
        workload.frequencies(prefix)
    with pytest.raises(ValueError, match="prefix is"):
        sketched(workload, prefix=prefix, memory_bytes=10**6)


def one_table(ids, lengths=None):
    lengths = torch.ones(len(ids), dtype=torch.int64) if lengths is None else lengths
    return KeyedJaggedTensor(["t"], torch.tensor(ids, dtype=torch.int64), lengths=lengths)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([384, 1000, 4000, 50_000]))
def test_sketch_is_never_above_the_truth_and_below_it_by_no_more_than_it_says(seed, batches, memory_bytes):
    draw, rows = np.random.default_rng(seed), 2000
    sketch = FrequencySketch({"t": rows}, memory_bytes=memory_bytes)
    truth = np.zeros(rows, dtype=np.int64)
    for _ in range(batches):
        ids = np.minimum(draw.zipf(1.2, 800) - 1, rows - 1)
        sketch.add(one_table(ids.tolist(), lengths=torch.tensor([500, 0, 300])))
        np.add.at(truth, ids, 1)
    found = sketch.result(samples=3 * batches)
    estimate = found.accesses["t"].numpy()
    assert (estimate <= truth).all()
    assert (estimate >= truth - found.error["t"]).all()
    assert found.lookups["t"] == truth.sum()
    places = max(8, 1 << (memory_bytes // 48).bit_length() - 1)
    assert found.error["t"] <= 3.5 / places * truth.sum()


def test_sketch_larger_than_its_tables_is_exact_and_equal_inputs_give_equal_bytes(prepared):
    workload = PreparedWorkload.open(prepared, batch_size=BATCH)
    found = sketched(workload, prefix=1.0, memory_bytes=10**6)
    assert set(found.error.values()) == {0}
    assert same(found.accesses, workload.frequencies())
    tight = [sketched(workload, prefix=1.0, memory_bytes=15_000) for _ in range(2)]
    assert max(tight[0].error.values()) > 0
    assert same(tight[0].accesses, tight[1].accesses)


def test_sketch_without_memory_for_its_tables_names_the_least_that_works():
    tables = {"a": 1000, "b": 10**9}
    with pytest.raises(DataError, match="767 bytes are too few for a frequency sketch of 2 tables: give at least 768"):
        FrequencySketch(tables, memory_bytes=767)
    FrequencySketch(tables, memory_bytes=768)
