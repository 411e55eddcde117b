"""Rules of the models: each contradiction inside a record is a finding of its own."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from suite.records.record import Check, Record, Status
from suite.records.store import load_record
from suite.validate import check_files
from tests.unit.suite.fabricate import measurement, optimum, record, verification
from tests.unit.suite.validate.validate_scenes import changed, everything, stored


@pytest.fixture
def said(tmp_path: Path) -> Callable[..., list[str]]:
    """Findings of a record, some of its values changed in the file."""

    def check(one: Record, **changes: Any) -> list[str]:
        (path,) = stored(tmp_path, [one])
        for place, value in changes.items():
            changed(path, place, value)
        return list(check_files([path])[path])

    return check


def test_what_the_suite_writes_loads_as_it_was_and_nothing_is_found(tmp_path: Path) -> None:
    for one in everything():
        (path,) = stored(tmp_path, [one])
        assert load_record(path) == one, one.cell.label
        assert check_files([path]) == {path: ()}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_floats_that_json_lacks_are_words_wherever_the_models_take_them(tmp_path: Path, number: float) -> None:
    (path,) = stored(tmp_path, [record().model_copy(update={"wall_s": number})])
    text = json.loads(path.read_text())["wall_s"]
    assert text in ("NaN", "Infinity", "-Infinity")
    changed(path, "measurement.quality.final_loss", text)
    loaded = load_record(path)
    assert loaded.measurement is not None
    assert [loaded.wall_s, loaded.measurement.quality.final_loss] == pytest.approx([number] * 2, nan_ok=True)


def test_edited_configuration_no_longer_has_its_key(said: Callable[..., list[str]]) -> None:
    edits = {"cell.lr": 0.2, "environment.code": "beef", "environment.packages": {"torch": "2.13.0"}}
    for place, value in edits.items():
        (finding,) = said(record(), **{place: value})
        assert finding.startswith(f"key: found '{record().key}', but cell, code, packages and machine give '")
        assert "restore the file or measure it again" in finding


def test_run_alone_stands_behind_a_turn_that_there_is(said: Callable[..., list[str]]) -> None:
    four = {"alone_s": [[0.8] * 2] * 3, "alone_behind": (0, 3)}  # a build has four turns
    assert said(record(timed=four)) == []
    (finding,) = said(record(timed=four), **{"turns.alone_behind": [0, 4]})
    assert "turns.alone_behind: found turn 4, which a build of system_s does not have" in finding


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("turns.system_s", [[0.8] * 4] * 2, "turns.baseline_s: has other builds or turns than system_s"),
        ("turns.system_s", [[0.8] * 4, [0.8, 0.8, 0.0, 0.8], [0.8] * 4], "turns.system_s[1][2]: Input should be"),
        ("turns.baseline_s", [[0.8] * 4, [0.8] * 4, ["NaN"] * 4], "turns.baseline_s[2][0]: Input should be a finite"),
        ("turns.baseline_s", None, "turns.baseline: found 'full_gpu', which does not go with baseline_s"),
        ("turns.system_s", [[0.8] * 4, [], [0.8] * 4], "turns.system_s[1]: Tuple should have at least 1 item"),
        ("turns.baseline_embedding_s", [[0.8] * 3] * 3, "turns.baseline_embedding_s: has other builds or turns than"),
        ("turns.alone_s", [[0.8] * 4] * 2, "turns.alone_s: has 2 builds, system_s has 3"),
        ("turns.alone_behind", [1], "turns.alone_behind: has 1 turns, alone_s has another number of runs"),
        ("measurement.traffic", None, "measurement.traffic: is missing though the first round counts it"),
        ("measurement.traffic.steps", 11, ".steps: found 11, cell.counted_steps says 10"),
        ("measurement.traffic.unique_misses", 1_000_001, ".unique_misses: found 1000001, more than the 1000000 of"),
        ("measurement.traffic.unique_ids", 4_259_841, ".unique_ids: found 4259841, more than the 4259840 of lookups"),
        ("measurement.traffic.bytes_fetched", -5, ".bytes_fetched: Input should be greater than or equal to 0"),
        ("measurement.traffic.per_table", {"C1": [10**6, 49_999]}, "50000, the tables of per_table add up to 49999"),
        (
            "measurement.traffic.per_table",
            {"C1": [0, 25], "C2": [10**6, 5]},
            "C1: found 25 misses of 0 unique ids",
        ),
        ("optimum.first_step", 0, "optimum.first_step: found 0, the counted steps of cell give 220"),
        ("verification", None, "verification: is missing though the status is ok"),
        ("verification.checks", [], "verification: did not pass though the status is ok"),
        ("measurement", None, "measurement: is missing though the status is ok"),
        ("status", "timeout", "measurement: is there though the status is timeout: only ok has one, or"),
        ("status", "timeout", "turns: is there though the status is timeout: only ok has one, or"),
        ("started_at", "yesterday", "started_at: found 'yesterday', expected a time in ISO 8601 with its zone"),
        ("started_at", "2026-11-01T12:00:00", "expected a time in ISO 8601 with its zone"),
        ("turns.steps", True, "turns.steps: Input should be a valid integer, found True"),
        ("cell.surprise", 1, "cell.surprise: Extra inputs are not permitted"),
        ("key", ["x" * 500], f"key: Input should be a valid string, found ['{'x' * 58}..."),
    ],
)
def test_contradiction_is_a_finding(said: Callable[..., list[str]], place: str, value: Any, expected: str) -> None:
    findings = said(record(least=optimum()), **{place: value})
    assert [expected in finding for finding in findings].count(True) == 1, findings


def test_builds_and_turns_are_those_of_the_cell(said: Callable[..., list[str]]) -> None:
    for times, expected in (
        ([[0.8] * 4] * 4, "turns.system_s: found 4 builds, cell.builds says 3"),
        ([[0.8] * 4, [0.8] * 3, [0.8] * 4], "turns.system_s: found [4, 3, 4] turns, expected as many in every build"),
    ):
        assert expected in said(record(), **{"turns.system_s": times, "turns.baseline_s": times})


def test_what_failed_in_its_turns_keeps_what_it_measured(said: Callable[..., list[str]]) -> None:
    for status in (Status.CRASHED, Status.TIMEOUT):
        failed = record(status=status, reason="because", phase="turns")
        assert failed.measurement is not None
        assert said(failed) == []
        baseline = record(timed={"system_s": [(1.0,) * 4] * 3})  # fell in a later contest: the first one's times stand
        assert said(baseline, status=status, reason="because", phase="turns") == []


def test_wrong_answer_has_a_failed_check_and_no_measurement(said: Callable[..., list[str]]) -> None:
    wrong = record(status=Status.WRONG_ANSWER, reason="rows differ", checked=verification(passed=False))
    assert said(wrong) == []
    measured = measurement(wrong.cell).model_dump(mode="json")
    for phase in ("verify", "turns"):
        assert said(wrong, measurement=measured, phase=phase) == [
            "measurement: is there though the status is wrong_answer: only ok has one, or a failure in turns"
        ]
    no_failure = "verification: shows no failed check though the status is wrong_answer"
    assert said(wrong, verification=None) == [no_failure]
    assert said(wrong, **{"verification.checks": [c.model_dump() for c in verification().checks]}) == [no_failure]


def test_control_needs_no_verification_and_a_stranger_does(said: Callable[..., list[str]]) -> None:
    assert said(record("no_embeddings"), verification=None) == []
    assert said(record("no_embeddings_too"), verification=None) != []


def test_copy_under_another_name_is_a_finding_and_in_another_folder_is_none(tmp_path: Path) -> None:
    (ours,) = stored(tmp_path / "a", [record()])
    (theirs,) = stored(tmp_path / "b", [record()])
    copied = ours.with_name("z-copy.json")
    copied.write_text(ours.read_text())
    assert check_files([ours, theirs, copied]) == {
        ours: (),
        theirs: (),
        copied: (f"is not named as the store names it: rename it to {ours.name}, or delete the copy",),
    }


def test_a_check_beyond_its_tolerance_that_says_it_passed_is_refused():
    for difference in (0.5, math.nan):
        with pytest.raises(ValidationError, match=r"is true with a difference of .*, 0.0 allowed"):
            Check(name="rows", passed=True, max_difference=difference, tolerance=0.0)
