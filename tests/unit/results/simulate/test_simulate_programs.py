"""The programs run, at sizes that say little."""

import json
from pathlib import Path

import curve_against_planner
import pytest
import speed


@pytest.mark.slow  # a process per policy
def test_every_policy_has_its_line_and_its_place_in_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = "uvm,colossalai"
    small = ["--scale", "smoke", "--workload", "avazu", "--batches", "3", "--warmup", "1", "--cache-ratio", "0.0001"]
    speed.main([*small, "--policies", policies, "--out", str(tmp_path / "new" / "record.json")])
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    assert lines == list(record["results"]) == ["uvm", "colossalai", "belady", "compulsory"]
    assert "slots" in record["results"]["colossalai"]["reason"]
    uvm = record["results"]["uvm"]
    assert (uvm["batches"], uvm["ids"]) == (4, 4 * 256 * 13)
    assert uvm["peak_bytes"] >= uvm["before_bytes"] > 50e6
    assert uvm["million_ids_per_s"] >= uvm["million_ids_per_s_with_building"] > 0


@pytest.mark.slow  # a process per policy
def test_batches_of_single_ids_are_as_many_as_asked_for(tmp_path: Path) -> None:
    speed.main(["--policies", "sieve", "--single-ids", "9000", "--out", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["workload"] == "single ids"
    found = record["results"]["sieve"]
    assert (found["batches"], found["ids"]) == (9000, 9000)
    assert 0 < found["unique_misses_per_batch"] < 1
    assert found["million_batches_per_minute_with_building"] > 0


def test_curve_and_planner_are_compared_where_a_batch_fits(tmp_path: Path) -> None:
    curve_against_planner.main(["--scale", "smoke", "--batches", "9", "--out", str(tmp_path / "record.json")])
    points = json.loads((tmp_path / "record.json").read_text())["points"]
    assert points
    assert all(abs(point["off"]) < 0.1 for point in points)
