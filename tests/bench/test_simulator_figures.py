"""The figures' command runs, at a size that says little."""

import json
from pathlib import Path

import pytest
import simulator_figures


@pytest.mark.slow  # a process per policy
def test_every_policy_has_its_line_and_its_place_in_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = "uvm,colossalai"
    small = ["--scale", "smoke", "--workload", "avazu", "--batches", "3", "--warmup", "1", "--cache-ratio", "0.0001"]
    simulator_figures.main([*small, "--policies", policies, "--out", str(tmp_path / "new" / "record.json")])
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    assert lines == list(record["results"]) == ["uvm", "colossalai", "belady", "compulsory"]
    assert "slots" in record["results"]["colossalai"]["reason"]
    uvm = record["results"]["uvm"]
    assert (uvm["batches"], uvm["ids"]) == (4, 4 * 256 * 13)
    assert uvm["peak_bytes"] >= uvm["before_bytes"] > 50e6
    assert uvm["million_ids_per_s"] >= uvm["million_ids_per_s_with_building"] > 0
