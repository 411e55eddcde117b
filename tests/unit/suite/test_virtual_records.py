"""Records of a virtual device: nothing of them is timed, shown as speed, judged, or set beside what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from suite.__main__ import app
from suite.records.environment import VIRTUAL_DEVICE, Environment
from suite.records.groups import group_records
from suite.records.record import Record
from suite.records.store import RecordStore
from suite.tables.comparison import comparison
from suite.tables.sheet import to_markdown
from suite.tables.verdict import verdict
from tests.unit.suite.fabricate import environment, gpu_run, record

CAPTION = "On a virtual device, which is host memory"
SPEEDS = ("it/s", "total it/s", "vs full_gpu", "epoch time")


def virtual() -> Environment:
    return environment(machine="virtualmachine", driver="0.virtual").model_copy(update={"gpu": VIRTUAL_DEVICE})


def timed() -> list[Record]:
    """As no run leaves them: with times."""
    systems = (("full_gpu", False), ("cache[policy=lfu]", True), ("fbgemm_uvm_caching", True))
    return [record(name, where=virtual(), offloads=offloads) for name, offloads in systems]


def stored(root: Path, records: list[Record]) -> Path:
    """Records of a run: it leaves no times of a virtual device."""
    for one in records:
        RecordStore(root).write(one.untimed() if one.on_virtual_device else one)
    return root


def suite(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_a_cpu_is_no_virtual_device_though_the_machine_has_one() -> None:
    on_cpu = record(setting={"device": "cpu"}, where=virtual())
    assert not on_cpu.on_virtual_device
    assert record(where=virtual()).on_virtual_device
    assert not record().on_virtual_device


def test_tables_have_a_caption_and_no_speed() -> None:
    (group,) = group_records(one.untimed() for one in timed())
    assert verdict(group) == ""
    sheet = comparison([group])
    text = to_markdown(sheet)
    assert CAPTION in text
    assert VIRTUAL_DEVICE in text
    heads = {column.words for table in sheet.tables for frame in table.frames for column in frame.columns}
    assert not heads & set(SPEEDS), heads
    assert {"AUROC", "hit rate", "GPU GB allocated"} <= heads
    assert set(sheet.frame["kind"]) == {"virtual device"}
    for column in ("steps_per_s", "ratio", "samples_per_s"):
        assert sheet.frame[column].isna().all(), column


@pytest.mark.slow
def test_a_report_of_a_virtual_device_is_made_without_verdicts_or_speeds(tmp_path: Path) -> None:
    done = suite("report", "--out", stored(tmp_path, timed()))
    assert done.exit_code == 0, done.output
    paper = (tmp_path / "tables" / "paper.md").read_text()
    assert "virtual device" in paper
    page = (tmp_path / "index.html").read_text()
    assert CAPTION in page
    assert not re.search(r"<dt>.*full_gpu", page)
    assert not (tmp_path / "figures").exists()


def test_no_report_sets_a_virtual_device_beside_a_measured_one(tmp_path: Path) -> None:
    stored(tmp_path / "one", timed())
    stored(tmp_path / "other", gpu_run())
    done = suite("report", "--out", tmp_path / "both", "--records", tmp_path / "one", "--records", tmp_path / "other")
    assert done.exit_code == 2
    assert "some records are of a virtual device and others were measured" in done.output
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("mixed", ["two runs", "one run"])
def test_nothing_is_compared_across(tmp_path: Path, mixed: str) -> None:
    first = stored(tmp_path / "one", timed())
    second = stored(tmp_path / "other", gpu_run() if mixed == "two runs" else [*timed(), record("lone")])
    done = suite("compare", first, second)
    assert done.exit_code == 2
    assert "of a virtual device and others were measured" in done.output


def test_two_runs_of_a_virtual_device_are_compared_but_for_speed(tmp_path: Path) -> None:
    first = stored(tmp_path / "one", timed())
    later = [one.model_copy(update={"started_at": "2026-11-02T12:00:00+00:00"}) for one in timed()]
    done = suite("compare", first, stored(tmp_path / "other", later))
    assert done.exit_code == 0, done.output
    assert "it/s" not in done.output
    gate = suite("compare", first, tmp_path / "other", "--fail-if-slower", "10%")
    assert gate.exit_code == 2


def test_validate_refuses_times(tmp_path: Path) -> None:
    fine = [one.untimed() for one in timed()]
    assert suite("validate", stored(tmp_path / "fine", fine)).exit_code == 0
    RecordStore(tmp_path / "timed").write(timed()[1])
    done = suite("validate", tmp_path / "timed")
    assert done.exit_code == 1
    assert f"{VIRTUAL_DEVICE} has no speed" in done.output


@pytest.mark.parametrize("library", ["runtime.c", "nvml.c"])
def test_the_virtual_device_of_these_tests_is_known_by_its_name(library: str) -> None:
    source = Path(__file__).resolve().parents[2] / "virtual_cuda" / library
    assert f'"{VIRTUAL_DEVICE}"' in source.read_text(encoding="utf-8")
