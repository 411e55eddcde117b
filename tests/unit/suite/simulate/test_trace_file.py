"""Traces of one's own: what a file may hold, and what is said of one that cannot be replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from suite.simulate import trace_file
from suite.simulate.trace import Trace
from suite.simulate.trace_file import FileTrace
from workloads import DataError

SAMPLES, TABLES, BATCH = 100, 3, 30
SAVED: dict[str, Any] = {
    "ids.npy": np.save,
    "unsigned.npy": lambda path, ids: np.save(path, ids.astype(np.uint32)),
    "fortran.npy": lambda path, ids: np.save(path, np.asfortranarray(ids.astype(np.int16))),
    "plain.npz": lambda path, ids: np.savez(path, ids=ids),
    "compressed.npz": lambda path, ids: np.savez_compressed(path, ids=ids),
}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "BLOCK_IDS", 8 * TABLES)


def one_hot() -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, [50, 7, 1000], (SAMPLES, TABLES))


def saved(path: Path, ids: NDArray[np.int64]) -> Path:
    SAVED[path.name](path, ids)
    return path


def assert_batches(trace: Trace, expected: list[list[list[int]]]) -> None:
    """Ids of each batch by table, had in any order."""
    assert trace.length == len(expected)
    for index in reversed(range(trace.length)):
        ids = trace.ids(index)
        assert ids.values.dtype == np.int64
        assert ids.starts.tolist() == trace.table_starts.tolist()
        assert [part.tolist() for part in np.split(ids.values, ids.ends[:-1])] == expected[index]
    assert trace.batch_lookups == max(sum(map(len, batch)) for batch in expected)
    with pytest.raises(IndexError, match=f"there is no batch {len(expected)}, only {len(expected)}"):
        trace.ids(len(expected))


@pytest.mark.parametrize("name", SAVED)
def test_batches_are_the_samples_in_their_order(name: str, tmp_path: Path) -> None:
    ids = one_hot()
    trace = FileTrace(saved(tmp_path / name, ids), BATCH)
    assert [rows for _, rows in trace.tables] == (ids.max(axis=0) + 1).tolist()
    assert_batches(trace, [ids[start : start + BATCH].T.tolist() for start in (0, 30, 60)])
    for table, counts in enumerate(FileTrace(tmp_path / name, BATCH, prefix=0.25).frequencies()):
        assert counts.tolist() == np.bincount(ids[:25, table], minlength=trace.tables[table][1]).tolist()


def test_bags_of_any_length_are_read(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    samples = [[draw.integers(0, 40, draw.integers(0, 4)).tolist() for _ in range(TABLES)] for _ in range(SAMPLES)]
    flat = [bag for sample in samples for bag in sample]
    arrays = {"ids": np.array([i for bag in flat for i in bag]), "offsets": np.cumsum([0, *map(len, flat)])}
    np.savez(tmp_path / "bags.npz", **arrays, names=np.array(["x", "y", "z"]), rows=np.array([40, 50, 60]))
    trace = FileTrace(tmp_path / "bags.npz", BATCH)
    assert trace.tables == (("x", 40), ("y", 50), ("z", 60))
    batches = [samples[start : start + BATCH] for start in (0, 30, 60)]
    assert_batches(trace, [[[i for one in batch for i in one[table]] for table in range(TABLES)] for batch in batches])
    counts = trace.frequencies()
    assert counts[1].tolist() == np.bincount([i for s in samples for i in s[1]], minlength=50).tolist()


# What cannot be replayed


def refusal(path: Path, batch_size: int = BATCH) -> str:
    with pytest.raises(DataError) as caught:
        trace = FileTrace(path, batch_size)
        for index in range(trace.length):
            trace.ids(index)
    return str(caught.value)


@pytest.mark.parametrize("name", ["ids.npy", "plain.npz"])
@pytest.mark.parametrize(
    ("at", "value", "sentence"),
    [
        ((77, 1), -5, "table 1, row 77: id -5 is negative"),
        ((3, 0), 2**40, "row 3: id 1099511627776 does not fit 2^31 rows"),
        ((0, slice(None)), 2**30, "the simulator numbers fewer than 2^31"),
    ],
)
def test_an_id_that_cannot_be_is_named_with_its_place(
    name: str, at: Any, value: int, sentence: str, tmp_path: Path
) -> None:
    ids = one_hot()
    ids[at] = value
    said = refusal(saved(tmp_path / name, ids))
    assert str(tmp_path / name) in said
    assert sentence in said


def test_an_id_of_64_bits_without_sign_is_not_called_negative(tmp_path: Path) -> None:
    ids = one_hot().astype(np.uint64)
    ids[3, 0] = 2**64 - 1
    assert "row 3: id 18446744073709551615 does not fit 2^31 rows" in refusal(saved(tmp_path / "ids.npy", ids))


def test_an_id_outside_its_table_is_named_when_its_batch_comes(tmp_path: Path) -> None:
    ids = one_hot()
    ids[44, 2] = 1000
    np.savez(tmp_path / "t.npz", ids=ids, rows=np.array([50, 7, 1000]))
    trace = FileTrace(tmp_path / "t.npz", BATCH)
    trace.ids(0)
    for read in (lambda: trace.ids(1), trace.frequencies):
        with pytest.raises(DataError, match="table 2, row 44: id 1000 is outside the table's 1,000 rows"):
            read()


def test_fewer_samples_than_a_batch_are_refused(tmp_path: Path) -> None:
    said = refusal(saved(tmp_path / "ids.npy", one_hot()), batch_size=101)
    assert "holds 100 samples, a batch has 101: give --batch-size of at most 100" in said
    assert "holds no samples" in refusal(saved(tmp_path / "plain.npz", np.zeros((0, TABLES), np.int64)))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"ids": np.zeros((9, 2))}, "ids are float64: give integers"),
        ({"ids": np.zeros(9, int)}, r"ids of shape \[9\]: give \[samples, tables\]"),
        ({"ids": np.zeros((9, 0), int)}, r"ids of shape \[9, 0\]"),
        ({"ids": np.zeros((9, 2), int), "row": np.ones(2, int)}, "holds ids, row: give ids"),
        ({"ids": np.zeros((9, 2), int), "rows": np.ones(3, int)}, "rows of 3 tables, ids of 2"),
        ({"ids": np.zeros((9, 2), int), "rows": np.zeros(2, int)}, "rows has 0: every table has at least 1"),
        ({"ids": np.zeros((9, 2), int), "names": np.array(["a", "a"])}, "2 names, 1 of them different, for 2 tables"),
        ({"ids": np.zeros(9, int), "offsets": np.arange(10)}, "give rows too"),
        (
            {"ids": np.zeros(9, int), "offsets": np.arange(10), "rows": np.ones(2, int)},
            r"offsets \[samples \* 2 \+ 1\]",
        ),
        ({"ids": np.zeros(9, int), "offsets": np.arange(9), "rows": np.ones(2, int)}, "offsets run from 0 to 8"),
        (
            {"ids": np.zeros(4, int), "offsets": np.array([0, 3, 1, 3, 4]), "rows": np.ones(2, int)},
            "fall within sample 0",
        ),
    ],
)
def test_arrays_that_are_no_trace_are_refused(arrays, sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match=sentence):
        FileTrace(tmp_path / "t.npz", 1)


@pytest.mark.parametrize("name", ["ids.npy", "plain.npz", "compressed.npz"])
def test_damaged_files_are_refused_in_a_sentence_or_read(name: str, tmp_path: Path) -> None:
    path, draw = saved(tmp_path / name, one_hot()), np.random.default_rng(0)
    whole = path.read_bytes()
    refused = 0
    for at in draw.integers(0, len(whole), 150):
        path.write_bytes(whole[:at] + draw.bytes(1) + whole[at + 1 :])
        try:
            FileTrace(path, BATCH)
        except DataError:
            refused += 1
    assert refused > 3


def test_files_that_hold_no_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", ids=np.array([[{}]], dtype=object))
    for name in ("text.npy", "text.npz"):
        (tmp_path / name).write_bytes(b"not what the name says, and long enough to have a header" * 5)
    for name in ("objects.npy", "objects.npz", "text.npy", "text.npz"):
        assert f"cannot read {tmp_path / name}" in refusal(tmp_path / name, 1)
    (tmp_path / "t.csv").write_text("1,2\n")
    assert "ends in '.csv': give a .npy or .npz file" in refusal(tmp_path / "t.csv")
    assert "No such file" in refusal(tmp_path / "missing.npy")
