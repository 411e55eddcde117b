"""One corruption anywhere in a record is reported with its file, and the other files are checked all the same."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.records.store import RecordStore, to_text
from suite.validate import check_files
from tests.unit.suite.fabricate import record
from tests.unit.suite.validate.validate_scenes import PUBLISHED, everything, stored

GOOD = record("untouched")
FEW = settings(max_examples=40)
FREE = {"packages", "openmp", "anatomy_bytes", "per_table"}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Published records, and fabricated ones of every kind."""
    published = sorted((PUBLISHED / "records").glob("*r0*.json"))
    assert published
    return [*published, *stored(tmp_path_factory.mktemp("fabricated"), everything())]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corrupted")


def check_beside_a_good_one(scratch: Path, name: str, content: bytes) -> tuple[str, ...]:
    """Check a file that lies beside a valid record; the store must tell of it or read it, too."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        root = Path(folder)
        good = RecordStore(root).path(GOOD)
        good.parent.mkdir()
        good.write_text(to_text(GOOD))
        bad = root / "records" / name
        bad.write_bytes(content)
        records, problems = RecordStore(root).load_all()
        files = map(RecordStore(root).path, records)
        assert GOOD in records
        assert {*files, *(problem.path for problem in problems)} == {good, bad}
        checked = check_files([good, bad])
        assert checked[good] == ()
        return checked[bad]


def fields(content: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every field of a record, with its place; keys of `FREE` are names of the record's own."""
    if isinstance(content, dict) and not {*place} & FREE:
        for name, inner in content.items():
            yield (*place, name)
            yield from fields(inner, (*place, name))


def at(content: Any, place: tuple[str | int, ...]) -> Any:
    for step in place:
        content = content[step]
    return content


@FEW
@given(data=st.data())
def test_dropped_field_is_named(originals: list[Path], scratch: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(originals))
    content = json.loads(path.read_text())
    *outer, last = place = data.draw(st.sampled_from(sorted(fields(content))))
    del at(content, tuple(outer))[last]
    checked = check_beside_a_good_one(scratch, path.name, json.dumps(content).encode())
    (finding,) = checked
    where = ".".join(map(str, place))
    expected = "it has no schema_version" if last == "schema_version" else f"{where}: Field required"
    assert expected in finding


@FEW
@given(data=st.data())
def test_cut_file_is_cut_short(originals: list[Path], scratch: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(originals))
    whole = path.read_bytes().rstrip()
    checked = check_beside_a_good_one(scratch, path.name, whole[: data.draw(st.integers(0, len(whole) - 1))])
    (finding,) = checked
    assert "is not JSON, or cut short" in finding


@FEW
@given(data=st.data())
def test_flipped_byte_never_raises(originals: list[Path], scratch: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(originals))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check_beside_a_good_one(scratch, path.name, bytes(content))
