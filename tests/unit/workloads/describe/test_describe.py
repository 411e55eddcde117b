import io
import json
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from workloads.batch import Batch, DataKind, Split
from workloads.describe import files
from workloads.describe.description import Description
from workloads.describe.files import check_output, write
from workloads.describe.measure import describe
from workloads.describe.tables import show, tables_frame
from workloads.errors import DataError


class Listed:
    """Rows written down: by split, (label, bag of each table)."""

    name = "listed"
    kind = DataKind.REAL
    row_0 = "unknown ids"

    def __init__(self, tables, rows, *, block=2):
        self.tables = tuple(tables.items())
        self._rows = {split: rows.get(split, []) for split in Split}
        self.rows = {split: len(found) for split, found in self._rows.items()}
        self._block = block

    def read(self, split, limit):
        rows = self._rows[split][:limit]
        for start in range(0, len(rows), self._block):
            part = rows[start : start + self._block]
            bags = [row[1 + table] for table in range(len(self.tables)) for row in part]
            yield Batch.of(
                keys=[name for name, _ in self.tables],
                ids=np.array(list(chain(*bags)), np.int64),
                lengths=np.array(list(map(len, bags))).reshape(len(self.tables), -1),
                dense=np.empty((len(part), 0), np.float32),
                labels=np.array([row[0] for row in part], np.float32),
            )


TRAIN = [
    (1, [3], [0, 1]),
    (0, [3], []),
    (0, [1], [1, 1, 0]),
    (0, [3], [2]),
    (1, [2], []),
]
HAND_MADE = Listed(
    {"a": 4, "b": 9},
    {
        Split.TRAIN: TRAIN,
        Split.VALIDATION: [(1, [0], [8]), (1, [3], [7, 1])],
        Split.TEST: [(0, [2], [2])],
    },
)


def test_splits_of_hand_made_rows():
    train, validation, test = describe(HAND_MADE, batch_size=2).splits
    assert (train.rows, train.rows_read, train.ctr) == (5, 5, 0.4)
    assert train.row_0_share == 2 / 11
    assert train.unseen_share is None
    assert (validation.ctr, validation.row_0_share, validation.unseen_share) == (1.0, 1 / 5, 3 / 5)
    assert (test.ctr, test.row_0_share, test.unseen_share) == (0.0, 0.0, 0.0)


def test_tables_of_hand_made_rows():
    pooled, a, b = describe(HAND_MADE, batch_size=2).tables
    assert (a.table, a.rows, a.accesses, a.distinct, a.seen_once) == ("a", 4, 5, 3, 2)
    assert (a.mean_length, a.longest, a.empty_share, a.row_0_share) == (1.0, 1, 0.0, 0.0)
    assert a.top_shares == (0.6,) * 4
    assert (b.rows, b.accesses, b.distinct, b.seen_once) == (9, 6, 3, 1)
    assert (b.mean_length, b.longest, b.empty_share, b.row_0_share) == (6 / 5, 3, 0.4, 2 / 6)
    assert b.curve == ((1, 3), (2, 2), (3, 1))
    assert (pooled.rows, pooled.accesses, pooled.distinct, pooled.seen_once) == (13, 11, 6, 3)
    assert (pooled.mean_length, pooled.longest, pooled.empty_share) == (1.1, 3, 0.2)


def test_working_sets_of_hand_made_rows():
    (two,) = describe(HAND_MADE, batch_size=2).windows
    assert (two.batches, two.windows, two.mean_distinct, two.max_distinct, two.unique_share) == (1, 2, 4.0, 5, 0.8)
    one, four = describe(HAND_MADE, batch_size=1).windows
    assert (one.batches, one.windows) == (1, 5)
    assert (four.batches, four.windows, four.mean_distinct, four.unique_share) == (4, 1, 5.0, 0.5)


def test_limit_takes_leading_rows():
    limited = describe(HAND_MADE, batch_size=2, rows=3)
    assert [(split.rows, split.rows_read) for split in limited.splits] == [(5, 3), (2, 2), (1, 1)]
    assert limited.tables[0].accesses == 8
    assert [window.windows for window in limited.windows] == [1]
    assert limited.splits[2].unseen_share == 1.0  # a2 and b2 come in later training rows


BAGS = st.lists(st.integers(0, 3), max_size=3)
ROWS = st.lists(st.tuples(st.integers(0, 1), BAGS, BAGS), min_size=1, max_size=12)


@settings(max_examples=40)
@given(ROWS, ROWS, st.integers(1, 13), st.integers(1, 4))
def test_blocks_do_not_show_in_the_description(train, test, block, batch_size):
    rows = {Split.TRAIN: train, Split.TEST: test}
    tables = {"a": 4, "b": 4}
    whole = describe(Listed(tables, rows, block=100), batch_size=batch_size)
    assert describe(Listed(tables, rows, block=block), batch_size=batch_size) == whole


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
        ({"batch_size": 1, "rows": 0}, "--rows 0: must be at least 1"),
    ],
)
def test_numbers_out_of_range_name_their_flag(numbers, message):
    with pytest.raises(DataError, match=message):
        describe(HAND_MADE, **numbers)


def test_no_training_row_is_an_error_with_a_remedy():
    with pytest.raises(DataError, match="listed: no training row to read: raise --rows"):
        describe(Listed({"a": 4}, {Split.TEST: [(1, [0])]}), batch_size=1)


# Printed


def printed(description):
    stream = io.StringIO()
    show(description, Console(file=stream, markup=False, highlight=False))
    return stream.getvalue()


@pytest.fixture
def widest(monkeypatch):
    """Sizes of the largest datasets, names as long as Avazu's, bags: nothing printed is wider."""
    monkeypatch.setenv("COLUMNS", "80")
    description = describe(HAND_MADE, batch_size=2)
    big = 48_937_457_123
    table = {"rows": big // 100, "accesses": big, "distinct": big // 100, "longest": 100}
    return description.model_copy(
        update={
            "splits": tuple(split.model_copy(update={"rows": big, "rows_read": big}) for split in description.splits),
            "tables": tuple(
                figures.model_copy(update=table | {"table": "device_conn_type"}) for figures in description.tables
            ),
            "windows": tuple(
                window.model_copy(
                    update={"batches": 64, "windows": big // 1000, "mean_distinct": 1e8, "max_distinct": 10**8}
                )
                for window in description.windows
            ),
        }
    )


def test_tables_are_plain_text_of_80_columns_with_nothing_cut(widest):
    text = printed(widest)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "..." not in text
    assert "\x1b" not in text
    assert "48,937,457,123" in text
    assert "device_conn_type" in text


# Written


@pytest.fixture(scope="module")
def description():
    return describe(HAND_MADE, batch_size=2)


@pytest.fixture(scope="module")
def written(description, tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    return folder, write(description, folder)


def test_what_is_written_reads_back(description, written):
    folder, files = written
    assert sorted(path.name for path in folder.iterdir()) == ["description.json", "rank_frequency.svg", "tables.csv"]
    assert sorted(folder.iterdir()) == sorted(files)
    assert Description.model_validate_json((folder / "description.json").read_text()) == description
    frame, read = tables_frame(description), pd.read_csv(folder / "tables.csv")
    pd.testing.assert_frame_equal(read, frame.fillna(np.nan).astype(read.dtypes))
    tables = read.set_index("table")
    assert tables.loc["b", "distinct"] == 3
    assert tables.loc["b", "top_0.1_percent"] == 0.5
    assert (folder / "rank_frequency.svg").read_text().rstrip().endswith("</svg>")


def test_equal_descriptions_give_equal_bytes(description, written, tmp_path):
    for one, other in zip(written[1], write(description, tmp_path), strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bag", [[0], []])
def test_rows_without_a_full_batch_or_any_id_are_printed_and_drawn(bag, tmp_path):
    bare = describe(Listed({"a": 4}, {Split.TRAIN: [(1, bag)]}), batch_size=2)
    assert "do not fill a batch of 2: lower --batch-size" in " ".join(printed(bare).split())
    assert len(write(bare, tmp_path)) == 3


def test_failed_writing_leaves_earlier_files_as_they_were(description, tmp_path, monkeypatch):
    (tmp_path / "description.json").write_text("earlier")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "draw", full)
    with pytest.raises(DataError, match="No space left on device; earlier files there are intact"):
        write(description, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["description.json"]
    assert (tmp_path / "description.json").read_text() == "earlier"


def test_output_that_is_a_dataset_or_a_file_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({}))
    with pytest.raises(DataError, match="holds prepared data: choose a directory of its own"):
        check_output(tmp_path)
    with pytest.raises(DataError, match=r"manifest\.json cannot be written .*choose another directory"):
        check_output(tmp_path / "manifest.json")
