import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workloads.prepare.vocabulary
from workloads import DataError
from workloads.manifest import Settings
from workloads.prepare.formats import Fractions, Kind, RawColumn, RawFormat
from workloads.prepare.prepare import prepare
from workloads.prepare.workspace import MemoryBudget

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
    for path, part in zip(paths, np.array_split(np.array(ids, object), files), strict=True):
        path.write_text("".join(f"1,2,{i}\n" for i in part))
    manifest = prepare(ONE_TABLE, paths, out=folder, settings=Settings(**chosen))
    arrays = [np.load(folder / "one" / f"{split}_ids.npy") for split in manifest.splits]
    return np.concatenate(arrays)[:, 0].tolist(), np.load(folder / "one" / "counts.npy").tolist(), manifest


@settings(max_examples=25, deadline=None)
@given(
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
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
        MemoryBudget, merged_ids=limit, ranked_ids=limit, text_block_bytes=block_bytes
    ):  # fmt: skip
        rows, counts, manifest = prepared(ids, Path(folder), files=files, min_count=min_count)
    assert rows == expected
    assert counts == np.bincount(expected[: len(train)], minlength=len(ranked) + 1).tolist()
    assert manifest.tables[0].rows == len(ranked) + 1
    assert manifest.tables[0].training_ids == len(set(train))


def test_more_ids_than_a_table_can_number_is_an_error_with_remedies(tmp_path, monkeypatch):
    monkeypatch.setattr(workloads.prepare.vocabulary, "MOST_ROWS", 3)
    with pytest.raises(DataError, match=r"column id has 4 ids: raise --min-count, or hash them"):
        prepared(["1", "2", "3", "4", "5", "6"], tmp_path)
