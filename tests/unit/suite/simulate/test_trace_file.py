"""Traces of one's own: what a file may hold, and what is said of one that cannot be replayed."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from suite.simulate import trace_file
from suite.simulate.trace import Trace
from suite.simulate.trace_file import FileTrace
from workloads import DataError

SAMPLES, TABLES, BATCH = 100, 3, 30


def one_hot(seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, [50, 7, 1000], (SAMPLES, TABLES))


def bags(seed: int = 0) -> list[list[list[int]]]:
    """Of every sample, of every table."""
    draw = np.random.default_rng(seed)
    return [[draw.integers(0, 40, draw.integers(0, 4)).tolist() for _ in range(TABLES)] for _ in range(SAMPLES)]


def saved(path: Path, ids: NDArray[np.int64]) -> Path:
    match path.name:
        case "ids.npy":
            np.save(path, ids)
        case "unsigned.npy":
            np.save(path, ids.astype(np.uint32))
        case "fortran.npy":
            np.save(path, np.asfortranarray(ids.astype(np.int16)))
        case "plain.npz":
            np.savez(path, ids=ids)
        case "compressed.npz":
            np.savez_compressed(path, ids=ids)
    return path


KINDS = ["ids.npy", "unsigned.npy", "fortran.npy", "plain.npz", "compressed.npz"]


def by_table(trace: Trace, index: int) -> list[list[int]]:
    ids = trace.ids(index)
    assert ids.values.dtype == np.int64
    assert ids.starts.tolist() == trace.table_starts.tolist()
    return [part.tolist() for part in np.split(ids.values, ids.ends[:-1])]


def assert_read_at_once(trace: Trace) -> None:
    """Batches read at once are those read one by one."""
    run = trace.run(0, trace.length)
    parts = [part.tolist() for part in np.split(run.values, run.ends[:-1])]
    assert parts == [part for index in range(trace.length) for part in by_table(trace, index)]


@pytest.mark.parametrize("name", KINDS)
def test_batches_are_the_samples_in_their_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "BLOCK_IDS", 8 * TABLES)
    ids = one_hot()
    trace = FileTrace(saved(tmp_path / name, ids), BATCH)
    assert (trace.length, trace.batch_lookups) == (SAMPLES // BATCH, BATCH * TABLES)
    assert [rows for _, rows in trace.tables] == (ids.max(axis=0) + 1).tolist()
    for index in (2, 0, 1):  # in any order
        assert by_table(trace, index) == ids[index * BATCH : (index + 1) * BATCH].T.tolist()
    assert_read_at_once(trace)
    for table, counts in enumerate(FileTrace(tmp_path / name, BATCH, prefix=0.25).frequencies()):
        assert counts.tolist() == np.bincount(ids[:25, table], minlength=trace.tables[table][1]).tolist()
    with pytest.raises(IndexError, match="there is no batch 3, only 3"):
        trace.ids(3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_bags_of_any_length_are_read(save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "BLOCK_IDS", 8 * TABLES)
    samples = bags()
    flat = [bag for sample in samples for bag in sample]
    offsets = np.cumsum([0, *map(len, flat)])
    ids = np.array([i for bag in flat for i in bag])
    save(tmp_path / "bags.npz", ids=ids, offsets=offsets, names=np.array(["x", "y", "z"]), rows=np.array([40, 50, 60]))
    trace = FileTrace(tmp_path / "bags.npz", BATCH)
    assert trace.tables == (("x", 40), ("y", 50), ("z", 60))
    most = 0
    for index in range(trace.length):
        mine = samples[index * BATCH : (index + 1) * BATCH]
        expected = [[i for sample in mine for i in sample[table]] for table in range(TABLES)]
        assert by_table(trace, index) == expected
        most = max(most, sum(map(len, expected)))
    assert trace.batch_lookups == most
    assert_read_at_once(trace)
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
def test_a_negative_id_is_named_with_its_place(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "BLOCK_IDS", 8 * TABLES)
    ids = one_hot()
    ids[77, 1] = -5
    said = refusal(saved(tmp_path / name, ids))
    assert str(tmp_path / name) in said
    assert "table 1, row 77: id -5 is negative" in said


def test_an_id_outside_its_table_is_named_when_its_batch_comes(tmp_path: Path) -> None:
    ids = one_hot()
    ids[44, 2] = 1000
    np.savez(tmp_path / "t.npz", ids=ids, rows=np.array([50, 7, 1000]))
    trace = FileTrace(tmp_path / "t.npz", BATCH)
    trace.ids(0)
    with pytest.raises(DataError, match="table 2, row 44: id 1000 is outside the table's 1,000 rows"):
        trace.ids(1)
    for read in (trace.frequencies, lambda: trace.run(0, 3)):
        with pytest.raises(DataError, match="table 2, row 44: id 1000"):
            read()


def test_numbers_that_no_simulator_can_hold_are_named(tmp_path: Path) -> None:
    large, many = one_hot(), one_hot()
    large[3, 0], many[0] = 2**40, 2**30
    assert "row 3: id 1099511627776 does not fit 2^31 rows" in refusal(saved(tmp_path / "ids.npy", large))
    assert "the simulator numbers fewer than 2^31" in refusal(saved(tmp_path / "ids.npy", many))


def test_fewer_samples_than_a_batch_are_refused(tmp_path: Path) -> None:
    said = refusal(saved(tmp_path / "ids.npy", one_hot()), batch_size=101)
    assert "holds 100 samples, a batch has 101: give --batch-size of at most 100" in said
    assert "holds no samples" in refusal(saved(tmp_path / "plain.npz", np.zeros((0, TABLES), np.int64)))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"ids": np.zeros((9, 2))}, "ids are float64: give integers"),
        ({"ids": np.zeros((9, 2), bool)}, "ids are bool: give integers"),
        ({"ids": np.zeros(9, int)}, r"ids of shape \[9\]: give \[samples, tables\]"),
        ({"ids": np.zeros((9, 0), int)}, r"ids of shape \[9, 0\]"),
        ({"indices": np.zeros((9, 2), int)}, "holds indices: give ids"),
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
        ({"ids": np.zeros(4, int), "offsets": np.array([0.0, 4.0]), "rows": np.ones(1, int)}, "offsets are float64"),
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
