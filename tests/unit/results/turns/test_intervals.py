"""The programs of turns: equal systems beside each other, and how often intervals miss."""

import json
import runpy
import sys
from pathlib import Path

import intervals as program
import pytest

RECORD = json.loads((Path(program.__file__).parent / "intervals.json").read_text(encoding="utf-8"))


def test_recorded_intervals_miss_as_often_as_they_promise() -> None:
    beside_its_repeat = RECORD["contests"].pop("small, one run beside its repeat")
    for found in RECORD["contests"].values():
        for system in ("even", "noisier"):
            assert 0.02 <= found[f"{system}_missed"] <= 0.08
    # why a table of one run says so
    assert beside_its_repeat["even_missed"] > max(found["even_missed"] for found in RECORD["contests"].values())
    assert all(found["flagged"] < 0.06 for found in RECORD["two_runs"])


def test_program_makes_the_record_at_a_size_that_says_little(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--contests", "20", "--pairs", "20"])
    made = json.loads(capsys.readouterr().out)
    assert made.keys() == RECORD.keys()
    assert made["contests"].keys() >= RECORD["contests"].keys()


PROGRAM = Path(program.__file__).with_name("alike.py")


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
