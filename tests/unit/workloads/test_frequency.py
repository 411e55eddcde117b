"""Frequencies of rows are counted on the training split alone."""

import random
import shutil

import numpy as np
import pytest
import torch

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
    before = PreparedWorkload.open(prepared, batch_size=BATCH).frequencies(0.25)
    outside = [("later", TRAIN // 4, TRAIN, "train"), ("validation", 0, 14, "validation"), ("test", 0, 14, "test")]
    for name, first, last, split in outside:
        changed = with_other_rows(prepared, tmp_path / name, first=first, last=last, split=split)
        assert same(before, changed.frequencies(0.25)), name
    assert not same(before, with_other_rows(prepared, tmp_path / "inside", first=0, last=1).frequencies(0.25))


def test_folded_copy_folds_the_prefix_alike(prepared):
    small = PreparedWorkload.open(prepared, batch_size=BATCH).shrunk(max_table_rows=6, batch_size=BATCH)
    ids = torch.cat([small.batch(index).features["C5"].values() for index in range(12)])
    assert torch.equal(small.frequencies(0.5)["C5"], torch.bincount(ids, minlength=6))


@pytest.mark.parametrize("prefix", [0.0, -0.1, 1.01, float("nan")])
def test_prefix_out_of_range_is_refused(prepared, prefix):
    workload = PreparedWorkload.open(prepared, batch_size=BATCH)
    with pytest.raises(ValueError, match=r"prefix is .*: give a share of the training split, above 0 to 1"):
        workload.frequencies(prefix)
