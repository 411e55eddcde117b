import errno
import os
import socket
from pathlib import Path

import pytest

from suite.records.store import RecordStore, StoreError
from tests.unit.suite.fabricate import record


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path)


def test_records_written_are_read_again_in_order_of_their_files_names(store: RecordStore) -> None:
    assert store.load_all() == ([], [])
    ours, other = record("cache[policy=lfu]"), record("full_gpu")
    store.write(other)
    store.write(ours)
    assert store.load_all() == ([ours, other], [])


def test_file_name_says_what_the_record_is_and_cannot_leave_the_directory(store: RecordStore) -> None:
    ours = record("cache[policy=lfu,tier=disk]", round=2)
    name = store.write(ours).name
    assert name == f"criteo_kaggle-cache-policy-lfu-tier-disk-rowwise_adagrad-cuda-r2-{ours.key}.json"
    assert store.write(record("../../evil/name")).parent == store.directory


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cut short"),
        (b'{"schema_version": 1, "key": "ab', "cut short"),
        (b"\xff\xfe\x00", "can't decode"),
        (b'{"hello": "world"}', "no record"),
        (b'{"schema_version": 99}', "has schema version 99, this suite reads 1: read it with the suite"),
        (b'{"schema_version": true}', "measure it again"),
        (b'{"schema_version": 1}', "key: Field required (and"),
        (b'{"schema_version": 1, "key": "\\ud800"}', "Invalid JSON"),
        (b" " * (1 << 24) + b"{}", "is larger than 16 MiB"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"schema_version": 1, "cell": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_001, "is not JSON"),
        (b"1" * 5000, "holds the integer 111111111111111111111111, which does not fit 64 bits"),
        (b'{"schema_version": 1, "wall_s": %d}' % (2**63), "does not fit 64 bits"),
        (b'{"schema_version": 1, "wall_s": %d}' % (2**63 - 1), "key: Field required"),
    ],
)
def test_unreadable_file_is_reported_and_the_others_load(store: RecordStore, content: bytes, reason: str) -> None:
    store.write(record())
    foreign = store.directory / "foreign.json"
    foreign.write_bytes(content)
    records, (problem,) = store.load_all()
    assert len(records) == 1
    assert problem.path == foreign
    assert reason in str(problem)


def test_what_is_no_file_in_place_of_a_record_is_a_problem_and_not_waited_for(store: RecordStore) -> None:
    store.write(record())
    (store.directory / "folder.json").mkdir()
    os.mkfifo(store.directory / "pipe.json")
    for name, target in (("loop", "loop.json"), ("gone", "nowhere"), ("zero", "/dev/zero")):
        (store.directory / f"{name}.json").symlink_to(target)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(store.directory / "socket.json"))
        records, problems = store.load_all()
    assert len(records) == 1
    assert [problem.path.stem for problem in problems] == ["folder", "gone", "loop", "pipe", "socket", "zero"]
    assert all(f"{problem.path}: cannot be read: " in str(problem) for problem in problems)


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_full_disk_names_the_file_and_leaves_the_old_record_whole(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    old = record()
    path = store.write(old)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(failing, full)
    with pytest.raises(StoreError, match=r"No space left.*make room") as caught:
        store.write(old.model_copy(update={"wall_s": 99.0}))
    assert str(path) in str(caught.value)
    monkeypatch.undo()
    assert list(store.directory.iterdir()) == [path]
    assert store.load_all() == ([old], [])


def test_interrupted_write_leaves_nothing_behind(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(record())
    assert list(store.directory.iterdir()) == []


def test_records_directory_that_is_a_file_is_a_sentence(store: RecordStore) -> None:
    store.directory.write_text("")
    records, (problem,) = store.load_all()
    assert (records, problem.path) == ([], store.directory)
    assert "cannot be read" in str(problem)
    with pytest.raises(StoreError, match="choose a results directory"):
        store.write(record())
