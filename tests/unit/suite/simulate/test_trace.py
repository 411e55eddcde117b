"""Traces: batches by index, frequencies, and what is said of a file that cannot be replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_streams import bagged
from numpy.typing import NDArray

from suite.simulate.trace import FileTrace, WorkloadTrace
from workloads import DataError


def test_workload_trace_has_the_ids_and_frequencies_of_its_workload() -> None:
    workload = bagged(batch_size=5, seed=1, max_rows=2000)
    trace = WorkloadTrace(workload, prefix=0.5)
    parts = workload.batch(7).features.to_dict()
    ids = trace.ids(7)
    for table, (name, _) in enumerate(trace.tables):
        begin = ids.ends[table - 1] if table else 0
        assert ids.values[begin : ids.ends[table]].tolist() == parts[name].values().tolist()
    assert trace.table_starts.tolist() == np.cumsum([0, *(rows for _, rows in trace.tables)])[:-1].tolist()
    expected = workload.frequencies(0.5)
    for (name, _), found in zip(trace.tables, trace.frequencies(), strict=True):
        assert found.tolist() == expected[name].tolist()


# Ids of one's own, from a file

TABLES, BATCH = 3, 30
SAVED: dict[str, Any] = {
    "ids.npy": np.save,
    "unsigned.npy": lambda path, ids: np.save(path, ids.astype(np.uint32)),
    "fortran.npy": lambda path, ids: np.save(path, np.asfortranarray(ids.astype(np.int16))),
    "plain.npz": lambda path, ids: np.savez(path, ids=ids),
    "compressed.npz": lambda path, ids: np.savez_compressed(path, ids=ids),
}


def one_hot() -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, [50, 7, 1000], (100, TABLES))


def saved(path: Path, ids: NDArray[Any]) -> Path:
    SAVED[path.name](path, ids)
    return path


@pytest.mark.parametrize("name", SAVED)
def test_batches_of_a_file_are_its_samples_in_their_order(name: str, tmp_path: Path) -> None:
    ids = one_hot()
    trace = FileTrace(saved(tmp_path / name, ids), BATCH)
    assert [rows for _, rows in trace.tables] == (ids.max(axis=0) + 1).tolist()
    assert (trace.length, trace.batch_lookups) == (3, BATCH * TABLES)
    for index in (2, 0, 1):
        found = trace.ids(index)
        assert (found.values.dtype, found.starts.tolist()) == (np.int64, trace.table_starts.tolist())
        parts = [part.tolist() for part in np.split(found.values, found.ends[:-1])]
        assert parts == ids[BATCH * index : BATCH * (index + 1)].T.tolist()
    with pytest.raises(IndexError, match="there is no batch 3, only 3"):
        trace.ids(3)
    for table, counts in enumerate(FileTrace(tmp_path / name, BATCH, prefix=0.45).frequencies()):
        assert counts.tolist() == np.bincount(ids[:45, table], minlength=trace.tables[table][1]).tolist()


def refusal(path: Path, batch_size: int = BATCH) -> str:
    with pytest.raises(DataError) as caught:
        trace = FileTrace(path, batch_size)
        for index in range(trace.length):
            trace.ids(index)
    return str(caught.value)


@pytest.mark.parametrize(
    ("at", "value", "sentence"),
    [
        ((77, 1), -5, "table 1, row 77: id -5 is outside the table's 7 rows"),
        ((3, 0), 2**40, "the simulator numbers fewer than 2^31"),
        ((0, slice(None)), 2**30, "the simulator numbers fewer than 2^31"),
        ((3, 0), np.uint64(2**64 - 1), "the tables have 18,446,744,073,709,552,6"),
    ],
)
def test_an_id_that_cannot_be_is_named_with_its_place(at: Any, value: int, sentence: str, tmp_path: Path) -> None:
    ids = one_hot().astype(np.uint64 if value == 2**64 - 1 else np.int64)
    ids[at] = value
    said = refusal(saved(tmp_path / "ids.npy", ids))
    assert str(tmp_path / "ids.npy") in said
    assert sentence in said


def test_an_id_outside_its_table_is_named_when_its_batch_comes(tmp_path: Path) -> None:
    ids = one_hot()
    ids[44, 2] = 1000
    np.savez(tmp_path / "t.npz", ids=ids, rows=np.array([50, 7, 1000]), names=np.array(["x", "y", "z"]))
    trace = FileTrace(tmp_path / "t.npz", BATCH)
    assert trace.tables == (("x", 50), ("y", 7), ("z", 1000))
    trace.ids(0)
    for read in (lambda: trace.ids(1), trace.frequencies):
        with pytest.raises(DataError, match="table 2, row 44: id 1000 is outside the table's 1,000 rows"):
            read()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"ids": np.zeros((9, 2))}, "ids are float64: give integers"),
        ({"ids": np.zeros(9, int)}, r"ids of shape \[9\]: give \[samples, tables\]"),
        ({"ids": np.zeros((0, 2), int)}, r"ids of shape \[0, 2\]"),
        ({"ids": np.zeros((9, 2), int)}, "holds 9 samples, a batch has 30: give --batch-size of at most 9"),
        ({"ids": np.zeros((9, 2), int), "row": np.ones(2, int)}, "holds ids, row: give ids"),
        ({"ids": np.zeros((99, 2), int), "rows": np.ones(3, int)}, "ids of 2 tables, 3 rows and 2 names"),
        ({"ids": np.zeros((99, 2), int), "rows": np.array([-5, 10])}, "a table of -5 rows: give it at least one"),
        ({"ids": np.full((99, 2), -5)}, "a table of -4 rows: give it at least one, and count ids from 0"),
        ({"ids": np.zeros((99, 2), int), "names": np.array(["a", "a"])}, "ids of 2 tables, 2 rows and 2 names"),
    ],
)
def test_arrays_that_are_no_trace_are_refused(arrays: Any, sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match=sentence):
        FileTrace(tmp_path / "t.npz", BATCH)


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
