import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from workloads import DataError
from workloads.manifest import Settings
from workloads.prepare.prepare import prepare
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.schema import Split

ROWS = 98  # 84 train, 7 validation, 7 test


@pytest.fixture(scope="module")
def rows():
    draw = random.Random(3)
    return [
        [draw.randrange(2), *(draw.randrange(9) for _ in range(13)), *(f"{draw.randrange(40):x}" for _ in range(26))]
        for _ in range(ROWS)
    ]


@pytest.fixture(scope="module")
def original(tmp_path_factory, rows):
    base = tmp_path_factory.mktemp("data")
    source = base / "train.txt"
    source.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    prepare("criteo_kaggle", [source], out=base / "out", settings=Settings(skip_bad_rows=3))
    return base / "out" / "criteo_kaggle"


@pytest.fixture
def folder(tmp_path, original):
    """A copy that a test may damage."""
    return shutil.copytree(original, tmp_path / "data" / "criteo_kaggle")


def test_batches_hold_the_raw_rows_in_time_order(original, rows):
    workload = PreparedWorkload.open(original, batch_size=7)
    splits = {Split.TRAIN: rows[:84], Split.VALIDATION: rows[84:91], Split.TEST: rows[91:]}
    row_of: list[dict[str, int]] = [{} for _ in range(26)]
    for split, expected in splits.items():
        assert workload.batches(split) == len(expected) // 7
        for index in range(workload.batches(split)):
            batch, part = workload.batch(index, split), expected[index * 7 : index * 7 + 7]
            assert batch.labels.tolist() == [row[0] for row in part]
            assert batch.labels.dtype == batch.dense.dtype == torch.float32
            integers = np.array([row[1:14] for row in part], np.float32)
            torch.testing.assert_close(batch.dense, torch.from_numpy(np.log(integers + 2)))
            assert batch.features.values().dtype == torch.int64
            ids = batch.features.values().reshape(26, 7).tolist()
            for table in range(26):
                for raw, row in zip([r[14 + table] for r in part], ids[table], strict=True):
                    known = row_of[table].setdefault(raw, row) if split is Split.TRAIN else row_of[table].get(raw, 0)
                    assert row == known


@pytest.mark.parametrize("prefix", [0.01, 0.25, 1.0])
def test_frequencies_of_a_prefix_are_those_of_its_training_rows_alone(original, prefix):
    workload = PreparedWorkload.open(original, batch_size=1)
    expected = {name: torch.zeros(count, dtype=torch.int64) for name, count in workload.tables}
    for index in range(round(prefix * 84)):
        for name, bags in workload.batch(index).features.to_dict().items():
            expected[name][bags.values()] += 1
    found = workload.frequencies(prefix)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], counts) and counts.dtype == torch.int64 for name, counts in expected.items())


@pytest.mark.parametrize("prefix", [0.0, -0.1, 1.01, float("nan")])
def test_prefix_out_of_range_is_refused(original, prefix):
    workload = PreparedWorkload.open(original, batch_size=1)
    with pytest.raises(ValueError, match=r"prefix is .*: give a share of the training split, above 0 to 1"):
        workload.frequencies(prefix)


def test_shrunk_copy_folds_ids_and_frequencies_alike(original):
    workload = PreparedWorkload.open(original, batch_size=84)
    small = workload.shrunk(max_table_rows=6, batch_size=84)
    assert all(rows == min(6, full) for (_, rows), (_, full) in zip(small.tables, workload.tables, strict=True))
    folded = workload.batch(0).features.values() % 6
    assert torch.equal(small.batch(0).features.values(), folded)
    for (name, _), row in zip(small.tables, folded.reshape(26, 84), strict=True):
        assert torch.equal(small.frequencies()[name], torch.bincount(row, minlength=6))
    assert torch.equal(small.batch(0).dense, workload.batch(0).dense)
    assert small.shrunk(max_table_rows=100, batch_size=3).tables == small.tables
    assert small.batches(Split.TEST) == 0


@pytest.mark.parametrize("index", [-1, 12])
def test_batch_outside_the_split_is_refused(original, index):
    with pytest.raises(IndexError, match=rf"batch {index} of 12 in the train split"):
        PreparedWorkload.open(original, batch_size=7).batch(index)


# Damage

COMMAND = r"python -m workloads prepare criteo_kaggle --input train\.txt --out \S+data --skip-bad-rows 3 --overwrite$"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train_ids.npy", Path.unlink, "cannot be read"),
        ("counts.npy", Path.unlink, "cannot be read"),
        ("train_ids.npy", lambda path: path.write_bytes(path.read_bytes()[:-4]), "cannot be read"),
        (
            "train_ids.npy",
            lambda path: path.write_bytes(path.read_bytes() + b"0"),
            r"has \d+ bytes of int32 .* expected",
        ),
        (
            "test_labels.npy",
            lambda path: np.save(path, np.load(path).astype(bool)),
            r"has \d+ bytes of bool \(7,\), expected \d+ of uint8 \(7,\)",
        ),
        ("test_labels.npy", lambda path: path.write_bytes(bytes(128 + 7)), "cannot be read"),
        ("test_labels.npy", lambda path: path.write_bytes(b""), "cannot be read"),
    ],
)
def test_damaged_file_is_named_with_the_command_that_makes_it(folder, monkeypatch, name, damage, message):
    damage(folder / name)
    with pytest.raises(DataError, match=rf"{name} {message}.*{COMMAND}"):
        PreparedWorkload.open(folder, batch_size=2)
    monkeypatch.chdir(folder)
    with pytest.raises(DataError, match=rf"prepare criteo_kaggle .* --out {folder.parent} "):
        PreparedWorkload.open(Path(), batch_size=2)


def test_renamed_dataset_is_made_anew_beside_the_one_of_its_name_and_not_over_it(folder):
    renamed = folder.rename(folder.with_name("old"))
    (renamed / "counts.npy").unlink()
    with pytest.raises(DataError, match=COMMAND.replace(" --overwrite", "")):
        PreparedWorkload.open(renamed, batch_size=2)


def test_missing_manifest_names_the_command(tmp_path):
    folder = tmp_path / "avazu"
    with pytest.raises(DataError, match=r"manifest\.json cannot be read .*prepare avazu --input FILE\.\.\. --out \S+$"):
        PreparedWorkload.open(folder, batch_size=2)
    folder.mkdir()
    with pytest.raises(DataError, match=r"prepare avazu --input FILE\.\.\. --out \S+ --overwrite$"):
        PreparedWorkload.open(folder, batch_size=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, r"is of another version, or damaged \(version: Input should be 2\)"),
        ({"splits": {}}, "does not name the files and splits of a dataset"),
        ({"files": [{"name": "../../secret", "bytes": 1, "sha256": ""}]}, "does not name the files and splits"),
        ({"dataset": "../movies"}, r"is of another version, or damaged \(dataset"),
        ({"tables": []}, r"is of another version, or damaged \(tables"),
        ({"surprise": 1}, r"is of another version, or damaged \(surprise"),
    ],
)
def test_manifest_of_another_version_or_shape_is_refused(folder, change, message):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=rf"manifest\.json {message}.*python -m workloads prepare criteo_kaggle"):
        PreparedWorkload.open(folder, batch_size=2)


# Finding


def test_datasets_are_found_by_name_in_a_directory_or_as_one(folder):
    assert find_prepared(folder) == {"criteo_kaggle": folder}
    assert find_prepared(folder.parent) == {"criteo_kaggle": folder}


@pytest.mark.parametrize("id_", [-1, -(2**31), 2**31 - 1])
def test_batch_with_an_id_outside_its_table_is_refused(folder, id_):
    """A replay would read and write beyond its arrays."""
    path = folder / "train_ids.npy"
    ids = np.load(path)
    ids[12, 5] = id_
    np.save(path, ids)
    workload = PreparedWorkload.open(folder, batch_size=7)
    workload.batch(0)
    for one in (workload, workload.shrunk(max_table_rows=3, batch_size=7)):
        with pytest.raises(DataError, match=rf"train_ids.npy, row 12: id {id_} is outside table C6 of .* rows\. Make"):
            one.batch(1)
    with pytest.raises(DataError, match=rf"train_ids.npy, row 12: id {id_} is outside table C6 of .* rows\. Make"):
        workload.frequencies(0.5)


def test_nothing_prepared_completely_is_an_error_with_the_command(folder, tmp_path):
    folder.rename(folder.parent / ".criteo_kaggle.partial-abc")
    for place in (folder.parent, tmp_path / "absent"):
        with pytest.raises(
            DataError, match=r"holds no prepared dataset\. Make one: python -m workloads prepare DATASET"
        ):
            find_prepared(place)


def test_two_directories_of_one_dataset_are_refused(folder):
    shutil.copytree(folder, folder.parent / "second")
    with pytest.raises(DataError, match="both hold criteo_kaggle"):
        find_prepared(folder.parent)
