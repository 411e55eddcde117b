"""Older records: read at the current version, and rewritten at it, they are the same records."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.records.record import SCHEMA_VERSION, Record, record_key
from suite.records.status import Status
from suite.records.store import RecordStore, to_record, to_text
from suite.records.upgrades import UPGRADES, UnknownVersion, upgraded, version_of
from suite.validate.misfits import misfits
from tests.unit.suite.fabricate import optimum, prediction, record
from tests.unit.suite.validate.validate_scenes import PUBLISHED, VERSION_1, as_version_1, every_kind, stored, validate

RECORDS = st.builds(
    lambda speed, round, note, predicted: record(
        round=round,
        samples_per_s=speed,
        notes=(note,),
        predicted=prediction(speed) if predicted else None,
        least=optimum() if predicted else None,
    ),
    speed=st.floats(1e-3, 1e9),
    round=st.integers(0, 9),
    note=st.text(max_size=20),
    predicted=st.booleans(),
)


def test_there_is_a_step_from_every_older_version_to_the_next() -> None:
    assert list(UPGRADES) == list(range(1, SCHEMA_VERSION))
    for version, step in UPGRADES.items():
        assert step({"schema_version": version})["schema_version"] == version + 1


def test_step_leaves_what_it_takes_as_it_was() -> None:
    older = [json.loads(path.read_text()) for path in VERSION_1]
    assert any(content["prediction"] for content in older)
    for content in older:
        before = copy.deepcopy(content)
        after = upgraded(content)
        assert content == before
        if before["prediction"] is not None:
            before["prediction"]["hidden_s"] = {}
        assert {**after, "schema_version": 1} == {**before, "prediction_missing": ""}


def test_current_version_is_left_alone() -> None:
    content = json.loads(to_text(record(unpredicted="it is unknown")))
    assert upgraded(content) is content


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(SCHEMA_VERSION + 1, "update the suite"), (10**30, "update the suite"), (0, "measure it again"), (-1, "measure")],
)
def test_version_without_a_way_says_what_to_do(version: int, remedy: str) -> None:
    with pytest.raises(UnknownVersion, match=f"this .*reads 1 to {SCHEMA_VERSION}; {remedy}"):
        version_of({"schema_version": version})


@given(one=RECORDS)
def test_rewritten_record_is_the_record_that_was_read(one: Record) -> None:
    content = json.loads(to_text(one))
    del content["prediction_missing"]
    content["schema_version"] = 1
    read = to_record(content)
    rewritten = json.loads(to_text(read))
    assert to_record(rewritten) == read == one
    assert misfits(rewritten, SCHEMA_VERSION) == []


def test_upgrade_rewrites_published_records_without_changing_them(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    for path in (*(PUBLISHED / "records").glob("*.json"), *VERSION_1):
        (records / path.name).write_text(path.read_text())
    before = RecordStore(tmp_path).load_files()
    count = len(before[0])
    older = sum(json.loads(path.read_text())["schema_version"] == 1 for path in records.iterdir())
    assert older >= len(VERSION_1) > 0
    result = validate(tmp_path, "--upgrade")
    assert result.exit_code == 0
    assert f"{older} records rewritten at schema version 2" in result.output
    assert RecordStore(tmp_path).load_files() == before
    assert all(json.loads(path.read_text())["schema_version"] == 2 for path in records.iterdir())
    for path, one in before[0].items():
        assert record_key(one.cell, one.environment) == one.key, path.name
    again = validate(tmp_path, "--upgrade")
    assert again.output.splitlines() == [
        f"{count} records: {count} valid ({count} of schema version 2)",
        "0 records rewritten at schema version 2",
    ]


def test_upgrade_leaves_current_and_invalid_records_alone_and_names_the_invalid(tmp_path: Path) -> None:
    old, broken, current = stored(tmp_path, [record("old"), record("broken"), record("current")])
    as_version_1(old)
    as_version_1(broken)
    broken.write_text(broken.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    kept = {path: path.read_text() for path in (broken, current)}
    result = validate(tmp_path, "--upgrade")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "1 record rewritten at schema version 2, 1 invalid left as they were"
    assert f"{broken}: key: found" in result.output
    assert {path: path.read_text() for path in kept} == kept
    assert json.loads(old.read_text())["schema_version"] == 2


def test_without_upgrade_nothing_is_written(tmp_path: Path) -> None:
    paths = stored(tmp_path, every_kind())
    for path in paths:
        as_version_1(path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
    assert validate(tmp_path).exit_code == 0
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths} == before
    assert {one.status for one in RecordStore(tmp_path).load_all()[0]} == set(Status)


def test_full_disk_is_a_sentence_and_the_old_record_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = stored(tmp_path, [record()])
    as_version_1(path)
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = validate(tmp_path, "--upgrade")
    assert result.exit_code == 1
    assert f"error: cannot write {path}: No space left on device; make room" in result.stderr
    assert path.read_text() == before
