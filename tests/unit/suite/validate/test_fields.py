"""Fields of a record file: each is there, of its type, and named with its value where it is not."""

import json
import math
from typing import Any

import pytest

from suite.records.record import Record
from suite.records.store import NotARecord, to_record, to_text
from tests.unit.suite.fabricate import cpu_run, gpu_run, optimum, record
from tests.unit.suite.validate.validate_scenes import every_kind


def content_of(one: Record) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(to_text(one))
    return content


def said(content: dict[str, Any]) -> list[str]:
    try:
        to_record(content)
    except NotARecord as error:
        return [str(finding) for finding in error.findings]
    return []


def put(content: Any, place: str, value: Any) -> None:
    *outer, last = place.split(".")
    for name in outer:
        content = content[int(name) if name.isdigit() else name]
    content[int(last) if last.isdigit() else last] = value


def test_what_the_suite_writes_loads_as_it_was() -> None:
    for one in [*every_kind(), *gpu_run(), *cpu_run()]:
        assert to_record(content_of(one)) == one, one.cell.label


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_floats_that_json_lacks_are_words_wherever_the_models_take_them(number: float) -> None:
    whole = record(least=optimum())
    content = content_of(whole)
    text = content_of(whole.model_copy(update={"wall_s": number}))["wall_s"]
    assert text in ("NaN", "Infinity", "-Infinity")
    content["wall_s"] = content["turns"]["data_wait_s"] = content["measurement"]["quality"]["final_loss"] = text
    loaded = to_record(content)
    assert loaded.wall_s == pytest.approx(number, nan_ok=True)
    assert loaded.measurement is not None
    assert loaded.measurement.quality.final_loss == pytest.approx(number, nan_ok=True)


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("turns.system_s.1.3", None, "turns.system_s[1][3]: Input should be a valid number, found None"),
        ("wall_s", "nan", "wall_s: Input should be a valid number, found 'nan'"),
        ("turns.steps", True, "turns.steps: Input should be a valid integer, found True"),
        ("cell.batch_size", 0, "cell.batch_size: Input should be greater than or equal to 1, found 0"),
        ("measurement.traffic.per_table", {"C1": [1, "2"]}, "per_table.C1[1]: Input should be a valid integer"),
        ("measurement", [1], "measurement: Input should be an object, found [1]"),
        ("status", "fine", "status: Input should be 'ok', 'unsupported', "),
        ("notes.0", {}, "notes[0]: Input should be a valid string, found {}"),
        ("cell.surprise", 1, "cell.surprise: Extra inputs are not permitted"),
        ("key", ["x" * 500], f"key: Input should be a valid string, found ['{'x' * 58}..."),
        ("key", "x" * 500, f"key: found '{'x' * 60}', but cell, code, packages and machine give '"),
        ("cell.device", "tpu", "cell.device: Input should be 'cpu' or 'cuda', found 'tpu'"),
    ],
)
def test_misfit_names_place_and_value(place: str, value: Any, expected: str) -> None:
    content = content_of(record(notes=("said",)))
    put(content, place, value)
    found = said(content)
    assert expected in found[0], found


@pytest.mark.parametrize("place", ["cell.frequency_prefix", "optimum"])
def test_field_with_a_default_has_to_be_in_the_file(place: str) -> None:
    content = content_of(record())
    inside: Any = content
    *outer, last = place.split(".")
    for name in outer:
        inside = inside[name]
    del inside[last]
    assert said(content) == [f"{place}: Field required"]
