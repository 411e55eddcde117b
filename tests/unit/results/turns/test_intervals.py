"""How often intervals miss."""

import json
from pathlib import Path

import intervals as program

RECORD = json.loads((Path(program.__file__).parent / "intervals.json").read_text(encoding="utf-8"))


def test_recorded_intervals_miss_as_often_as_they_promise() -> None:
    beside_its_repeat = RECORD["contests"].pop("small, one run beside its repeat")
    for found in RECORD["contests"].values():
        for system in ("even", "noisier"):
            assert 0.02 <= found[f"{system}_missed"] <= 0.08
    # why a table of one run says so
    assert beside_its_repeat["even_missed"] > max(found["even_missed"] for found in RECORD["contests"].values())
    assert all(found["flagged"] < 0.06 for found in RECORD["two_runs"])


def test_program_makes_the_record_at_a_size_that_says_little(tmp_path: Path) -> None:
    program.main(["--contests", "20", "--pairs", "20", "--out", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text())
    assert made.keys() == RECORD.keys()
    assert made["contests"].keys() >= RECORD["contests"].keys()
