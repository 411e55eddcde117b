"""Described machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.advise.described import EXAMPLES, Hardware, load_hardware
from suite.records.options import BadOption


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_complete_and_every_figure_has_a_source(name: str) -> None:
    found = load_hardware(name)
    named = {field.strip() for key in found.sources for field in key.split(",")}
    assert named == set(Hardware.model_fields) - {"name", "sources"}
    assert found.device_memory_bytes >= 80e9


def _written(folder: Path, **changes: object) -> Path:
    content = load_hardware("a100").model_dump(mode="json") | changes
    path = folder / "mine.json"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return path


def test_file_of_ones_own_is_read(tmp_path: Path) -> None:
    found = load_hardware(str(_written(tmp_path, link_to_device_gb_per_s=400.0, tf32_flops=None)))
    assert (found.link_to_device_gb_per_s, found.tf32_flops) == (400, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"launch_s": ...}, "mine.json: field launch_s: Field required"),
        ({"memory_gb_per_s": -1.0}, "field memory_gb_per_s: Input should be greater than 0"),
        ({"memory_gb_per_s": "fast"}, "field memory_gb_per_s: Input should be a valid number"),
        ({"colour": "green"}, "field colour: Extra inputs are not permitted"),
        ({"attained": {"memory": 2.0, "flops": 0.5}}, "field attained.memory: Input should be less than or equal to 1"),
        ({"sources": {}}, "field sources: "),
    ],
)
def test_wrong_field_is_named_with_its_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = _written(tmp_path, **changes)
    with pytest.raises(BadOption) as refused:
        load_hardware(str(path))
    assert message in str(refused.value)
    assert "compare suite/advise/hardware/a100.json" in str(refused.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"--hardware .*absent.json cannot be read .*give a JSON file, or a100, h100"):
        load_hardware(str(tmp_path / "absent.json"))
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(BadOption, match="not a JSON object"):
        load_hardware(str(tmp_path / "list.json"))
    (tmp_path / "torn.json").write_text('{"name":')
    with pytest.raises(BadOption, match="Invalid JSON"):
        load_hardware(str(tmp_path / "torn.json"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadOption, match="not text"):
        load_hardware(str(tmp_path / "binary.json"))
