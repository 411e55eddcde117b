import gzip
import os
import shutil
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from prepare_scenes import content, kaggle_file, load, random_rows

import workloads.prepare.vocabulary
from workloads import DataError
from workloads.manifest import IdRule, Settings, read_manifest
from workloads.prepare.encoding import scaled
from workloads.prepare.formats import Fractions, Kind, RawColumn, RawFormat, split_rows
from workloads.prepare.prepare import prepare
from workloads.prepare.vocabulary import CountedIds, SortedIds, merged, write_run
from workloads.prepare.workspace import BYTES_PER_ID, MemoryBudget
from workloads.schema import DATASETS, Split

DATA = Path(os.environ.get("EMBEDDING_OFFLOAD_DATA", Path(__file__).parents[5] / "shared" / "data"))


def table_counts(folder, table):
    rows = [record.rows for record in read_manifest(folder).tables]
    return np.split(np.load(folder / "counts.npy"), np.cumsum(rows)[:-1])[table].tolist()


# Splits


@pytest.mark.parametrize("schema", DATASETS.values(), ids=DATASETS)
def test_split_rules_give_the_published_rows_of_the_full_datasets(schema):
    rows = sum(schema.splits.values())
    files = [rows] if schema.name != "criteo_1tb" else [schema.train_rows, 178_274_637]
    splits, _ = split_rows(schema.name, files)
    assert splits == schema.splits
    splits, rule = split_rows("criteo_1tb", [480])
    assert list(splits.values()) == [460, 10, 10]
    assert "single file" in rule


@pytest.mark.parametrize(
    ("dataset", "files"), [("criteo_kaggle", [7]), ("avazu", [19]), ("criteo_1tb", [2]), ("criteo_1tb", [9, 1])]
)
def test_too_few_rows_for_every_split_is_an_error_that_names_the_empty_ones(dataset, files):
    with pytest.raises(DataError, match=r"leave no row for (train|test).*give more rows"):
        split_rows(dataset, files)


# Values and ids


def test_extreme_integers_keep_their_order():
    values = np.array([-(10**18) + 1, 0, 10**18 - 1])
    assert np.diff(scaled(values, minimum=int(values[0]))).min() > 0


def test_sample_agrees_with_torchrec_bit_for_bit_in_dense_values_and_up_to_names_in_ids(tmp_path):
    dataset = "criteo_kaggle"
    sample = DATA / f"{dataset}_sample.tsv.gz"
    if not sample.exists():
        pytest.skip(f"{sample} is not here; set EMBEDDING_OFFLOAD_DATA")
    from torchrec.datasets.criteo import BinaryCriteoUtils

    plain = tmp_path / "rows.tsv"
    plain.write_bytes(gzip.decompress(sample.read_bytes()))
    theirs = [str(tmp_path / name) for name in ("dense.npy", "sparse.npy", "labels.npy")]
    BinaryCriteoUtils.tsv_to_npys(
        str(plain), *theirs
    )  # its criteo_kaggle mode drops labels of paths with "test" in them
    dense, sparse, labels = (np.load(path) for path in theirs)

    manifest = prepare(dataset, [sample], out=tmp_path)
    ours = load(tmp_path / dataset)
    joined = {part: np.concatenate([ours[f"{s}_{part}.npy"] for s in Split]) for part in ("dense", "ids", "labels")}
    assert joined["dense"].tobytes() == dense.tobytes()  # the whole file's minimum is in the training split here
    assert joined["labels"].tolist() == labels.ravel().tolist()
    rows = manifest.splits["train"].rows
    for table in range(26):
        pairs = set(zip(sparse[:rows, table].tolist(), joined["ids"][:rows, table].tolist(), strict=True))
        raw, row = zip(*pairs, strict=True)
        assert len(set(raw)) == len(set(row)) == len(pairs)
        later = set(zip(sparse[rows:, table].tolist(), joined["ids"][rows:, table].tolist(), strict=True))
        known = dict(pairs)
        assert all(known.get(raw_id, 0) == row for raw_id, row in later)


def test_avazu_sample_has_its_published_columns_and_rates(tmp_path):
    sample = DATA / "avazu_sample.csv.gz"
    if not sample.exists():
        pytest.skip(f"{sample} is not here; set EMBEDDING_OFFLOAD_DATA")
    manifest = prepare("avazu", [sample], out=tmp_path)
    assert [table.name for table in manifest.tables] == [name for name, _ in DATASETS["avazu"].categorical]
    assert manifest.dense_columns == DATASETS["avazu"].dense
    assert [split.rows for split in manifest.splits.values()] == [12_600, 700, 700]
    assert manifest.splits["train"].ctr == pytest.approx(0.17, abs=0.02)
    assert manifest.integer_minimum == -1  # C20


# Hashed ids


def test_hashed_ids_are_values_modulo_the_published_table_sizes_as_in_torchrec(tmp_path):
    from torchrec.datasets.criteo import BinaryCriteoUtils, InMemoryBinaryCriteoIterDataPipe

    source = kaggle_file(tmp_path / "rows", random_rows(140))
    paths = [[str(tmp_path / f"{name}.npy")] for name in ("dense", "sparse", "labels")]
    BinaryCriteoUtils.tsv_to_npys(str(source), *(path for (path,) in paths))
    sizes = [min(rows, 50) for _, rows in DATASETS["criteo_kaggle"].categorical]
    pipe = InMemoryBinaryCriteoIterDataPipe(
        stage="train", dense_paths=paths[0], sparse_paths=paths[1], labels_paths=paths[2], batch_size=140, rank=0,
        world_size=1, hashes=sizes,
    )  # fmt: skip
    expected = next(iter(pipe)).sparse_features.values().reshape(26, 140).T.numpy()
    manifest = prepare("criteo_kaggle", [source], out=tmp_path, settings=Settings(ids=IdRule.HASHED, table_rows=50))
    arrays = load(tmp_path / "criteo_kaggle")
    assert np.array_equal(np.concatenate([arrays[f"{split}_ids.npy"] for split in Split]), expected)
    assert [table.rows for table in manifest.tables] == sizes
    assert "modulo" in manifest.id_rule
    for table, size in enumerate(sizes):
        counts = table_counts(tmp_path / "criteo_kaggle", table)
        assert counts == np.bincount(expected[:120, table], minlength=size).tolist()


# Bounded memory


@pytest.mark.parametrize("ids", IdRule)
def test_blocks_merges_and_ranks_in_small_pieces_give_the_same_bytes(tmp_path, monkeypatch, ids):
    sources = [kaggle_file(tmp_path / f"day_{n}", random_rows(300, seed=n)) for n in range(3)]
    settings = Settings(ids=ids, table_rows=40 if ids is IdRule.HASHED else None)
    whole = prepare("criteo_1tb", sources, out=tmp_path / "one", settings=settings)
    monkeypatch.setattr(MemoryBudget, "text_block_bytes", 5000)
    monkeypatch.setattr(MemoryBudget, "ids", lambda _, tasks: 14 // tasks)
    ends = {}

    def told(step, done, total):
        ends[step] = done, total

    prepare("criteo_1tb", sources, out=tmp_path / "two", settings=settings, progress=told)
    assert list(ends) == ["reading", "counting", "ranking" if ids is IdRule.RANK else "hashing", "writing", "checksums"]
    assert all(done == total > 0 for done, total in ends.values())
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert whole.tables[0].rows > 21


def test_memory_of_a_merge_does_not_grow_with_the_number_of_lists(tmp_path):
    values = np.arange(100, dtype=np.uint64)
    limit, runs = 400, range(200)
    for run in runs:
        write_run(tmp_path, run, [CountedIds(values * 600 + run, values.astype(int) + 1, values.astype(int))])
    lists = merged([SortedIds.whole(tmp_path, run) for run in runs], limit=limit)
    tracemalloc.start()
    try:
        sizes = [len(next(lists).values)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sizes += [len(part.values) for part in lists]
    assert peak < 1.5 * limit * BYTES_PER_ID
    assert (sum(sizes), max(sizes) <= 2 * limit) == (100 * 200, True)


# Settings and bad rows


def test_skipped_rows_leave_the_same_data_as_a_file_without_them(tmp_path):
    rows = random_rows(30)
    clean = prepare("criteo_kaggle", [kaggle_file(tmp_path / "t", rows)], out=tmp_path / "clean")
    dirty = kaggle_file(tmp_path / "d", [*rows[:20], "junk\n", *rows[20:], "0\t1\n"])
    manifest = prepare("criteo_kaggle", [dirty], out=tmp_path / "dirty", settings=Settings(skip_bad_rows=2))
    assert (clean.skipped_rows, manifest.skipped_rows) == (0, 2)
    assert manifest.files == clean.files
    with pytest.raises(DataError, match=r"d:32: 2 columns found.*bad row 2; --skip-bad-rows allows 1"):
        prepare("criteo_kaggle", [dirty], out=tmp_path / "no", settings=Settings(skip_bad_rows=1))
    assert list((tmp_path / "no").iterdir()) == []


def test_terabyte_days_keep_their_order_and_the_last_is_held_back(tmp_path):
    days = [kaggle_file(tmp_path / f"day_{n}", random_rows(5 + n, seed=n)) for n in (2, 9, 10)]
    manifest = prepare("criteo_1tb", days, out=tmp_path / "out")
    assert [split.rows for split in manifest.splits.values()] == [7 + 14, 8, 7]
    assert [file.name for file in manifest.inputs] == ["day_2", "day_9", "day_10"]
    assert "order given" in manifest.split_rule
    with pytest.raises(DataError, match=r"days out of order or twice \(day_10 day_2 day_9\).*ls -v"):
        prepare("criteo_1tb", [days[2], *days[:2]], out=tmp_path / "out2")
    with pytest.raises(DataError, match="named twice"):
        prepare("criteo_1tb", [days[0], days[0]], out=tmp_path / "out2")
    packed = tmp_path / "day_10.gz"
    packed.write_bytes(gzip.compress(days[2].read_bytes()))
    with pytest.raises(DataError, match=r"days out of order or twice \(day_2 day_10 day_10.gz\)"):
        prepare("criteo_1tb", [days[0], days[2], packed], out=tmp_path / "out2")
    with pytest.raises(DataError, match="copy have the same content: name it once, or test rows would train too"):
        prepare("criteo_1tb", [days[0], shutil.copy(days[0], tmp_path / "copy")], out=tmp_path / "out2")


# Ranks

ONE_TABLE = RawFormat(
    "one",
    (RawColumn("label", Kind.LABEL), RawColumn("dense", Kind.DENSE_INTEGER), RawColumn("id", Kind.CATEGORICAL_HEX)),
    header=False,
    split=Fractions(train=0.5, validation=0.3),
)
names = st.sampled_from(["", "0", "1", "2", "3", "4", "f" * 16, "f" * 15])


def prepared(ids, folder, *, files=1, **chosen):
    """All rows of the only table, and its counts, of ids spread over several files."""
    paths = [folder / f"part_{number}" for number in range(files)]
    for number, part in enumerate(np.array_split(np.array(ids, object), files)):
        paths[number].write_text("".join(f"1,{number},{i}\n" for i in part))  # no two of one content: it is refused
    manifest = prepare(ONE_TABLE, paths, out=folder, settings=Settings(**chosen))
    arrays = [np.load(folder / "one" / f"{split}_ids.npy") for split in manifest.splits]
    return np.concatenate(arrays)[:, 0].tolist(), np.load(folder / "one" / "counts.npy").tolist(), manifest


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    ids=st.lists(names, min_size=6, max_size=40),
    min_count=st.integers(1, 4),
    files=st.integers(1, 3),
    limit=st.sampled_from([3, 8, 10**6]),
    block_bytes=st.sampled_from([30, 1000]),
)
def test_rows_rank_training_ids_by_count_then_first_appearance(ids, min_count, files, limit, block_bytes):
    train = ids[: round(len(ids) * 0.5)]
    ranked = [i for i, count in Counter(train).most_common() if count >= min_count]  # ties: order of first appearance
    expected = [ranked.index(i) + 1 if i in ranked else 0 for i in ids]
    smaller = mock.patch.multiple(MemoryBudget, ids=lambda *_: limit, text_block_bytes=block_bytes)
    with tempfile.TemporaryDirectory() as folder, smaller:
        rows, counts, manifest = prepared(ids, Path(folder), files=files, min_count=min_count)
    assert rows == expected
    assert counts == np.bincount(expected[: len(train)], minlength=len(ranked) + 1).tolist()
    assert manifest.tables[0].rows == len(ranked) + 1
    assert manifest.tables[0].training_ids == len(set(train))


def test_more_ids_than_a_table_can_number_is_an_error_with_remedies(tmp_path, monkeypatch):
    monkeypatch.setattr(workloads.prepare.vocabulary, "MOST_ROWS", 3)
    with pytest.raises(DataError, match=r"column id has 4 ids: raise --min-count, or hash them"):
        prepared(["1", "2", "3", "4", "5", "6"], tmp_path)
