"""The program that puts equal systems beside each other: every pair of copies is compared, and nothing is lost."""

import json
import runpy
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[4] / "results" / "turns" / "alike.py"


def test_every_pair_of_copies_is_compared_and_their_seconds_are_kept(tmp_path, monkeypatch):
    out = tmp_path / "alike.json"
    asked = "--scale smoke --workloads avazu --contests 1 --copies 3 --out"
    monkeypatch.setattr(sys, "argv", ["alike.py", *asked.split(), str(out)])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    record = json.loads(out.read_text())
    (contest,) = record["contests"]
    assert record["summary"]["pairs"] == 3
    assert 0 <= record["summary"]["missed"] <= 3
    assert {name: [len(build) for build in series] for name, series in contest["seconds"].items()} == {
        f"copy {number}": [4, 4] for number in range(3)
    }
