"""The published schema: what the models say, what records fit it, and what does not fit."""

import json
import math
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from suite.records.record import SCHEMA_VERSION, Record
from suite.records.store import to_text
from suite.validate.schema import FILE, misfits, schema_text, validator
from tests.unit.suite.fabricate import cpu_run, gpu_run, optimum, record
from tests.unit.suite.validate.validate_scenes import PUBLISHED, every_kind


def content_of(one: Record) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(to_text(one))
    return content


def said(content: dict[str, Any]) -> list[str]:
    return [str(finding) for finding in misfits(content)]


def test_committed_schema_is_what_the_models_give() -> None:
    assert FILE.read_text(encoding="utf-8") == schema_text(), "run python -m suite validate --print-schema"
    assert list(FILE.parent.iterdir()) == [FILE]


def test_schema_is_one_and_explains_its_fields() -> None:
    schema: Any = validator().schema
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    assert {"schema_version", "optimum"} <= set(schema["required"])
    assert schema["$defs"]["Turns"]["properties"]["steps"]["description"] == "Of every turn."


def test_published_records_fit_the_schema() -> None:
    paths = sorted((PUBLISHED / "records").glob("*.json"))
    assert paths
    for path in paths:
        assert said(json.loads(path.read_text())) == [], path.name


def test_what_the_suite_writes_fits_the_current_schema() -> None:
    for one in [*every_kind(), *gpu_run(), *cpu_run()]:
        assert said(content_of(one)) == [], one.cell.label


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_floats_that_json_lacks_fit_as_strings_wherever_the_models_take_them(number: float) -> None:
    whole = record(least=optimum())
    content = content_of(whole)
    text = content_of(whole.model_copy(update={"wall_s": number}))["wall_s"]
    assert text in ("NaN", "Infinity", "-Infinity")
    content["wall_s"] = content["cell"]["lr"] = text
    content["turns"]["system_s"][0][1] = content["turns"]["data_wait_s"] = text
    content["measurement"]["quality"]["final_loss"] = text
    assert said(content) == []
    assert Record.model_validate(content).cell.lr == pytest.approx(number, nan_ok=True)


@pytest.mark.parametrize("text", ["nan", "1.5", ""])
def test_other_strings_are_no_floats(text: str) -> None:
    content = content_of(record()) | {"wall_s": text}
    assert said(content) == [
        f"wall_s: '{text}' is not of type 'number' and '{text}' is not one of ['NaN', 'Infinity', '-Infinity']"
    ]


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("turns.system_s.1.3", None, "turns.system_s[1][3]: None is not of type 'number' and None is not one"),
        ("turns.steps", "40", "turns.steps: '40' is not of type 'integer'"),
        ("measurement.traffic.lookups", "many", "'many' is not of type 'integer' and 'many' is not of type 'null'"),
        ("measurement.traffic.per_table", {"C1": [1]}, "per_table.C1: [1] is too short"),
        ("measurement.traffic.per_table", {"C1": [1, "2"]}, "per_table.C1[1]: '2' is not of type 'integer'"),
        ("measurement", [1], "measurement: [1] is not of type 'object' and [1] is not of type 'null'"),
        ("cell", None, "cell: None is not of type 'object'"),
        ("status", "fine", "status: 'fine' is not one of ['ok', 'unsupported', "),
        ("notes.0", {}, "notes[0]: {} is not of type 'string'"),
        ("cell.surprise", 1, "cell: Additional properties are not allowed ('surprise' was unexpected)"),
        ("key", "x" * 500, None),
        ("key", ["x" * 500], f"key: ['{'x' * 58}... is not of type 'string'"),
        ("cell.device", 10**4000, f"cell.device: 1{'0' * 59}... is not one of ['cpu', 'cuda']"),
    ],
)
def test_misfit_names_place_and_value(place: str, value: Any, expected: str | None) -> None:
    content = content_of(record(notes=("said",)))
    *outer, last = place.split(".")
    inside: Any = content
    for name in outer:
        inside = inside[int(name) if name.isdigit() else name]
    inside[int(last) if last.isdigit() else last] = value
    found = said(content)
    if expected is None:
        assert found == []
    else:
        assert expected in found[0]


def test_every_misfit_is_named_once() -> None:
    content = content_of(record())
    del content["cell"]["lr"], content["cell"]["eps"]
    content["measurement"]["timing"] = {}
    found = said(content)
    assert len(found) == len(set(found))
    assert {f"cell: '{name}' is a required property" for name in ("lr", "eps")} <= set(found)
    schema: Any = validator().schema
    assert sum(line.startswith("measurement.timing: ") for line in found) == len(schema["$defs"]["Timing"]["required"])
