"""How often intervals miss."""

import json
from pathlib import Path

import intervals as program

DOCS = Path(__file__).resolve().parents[4] / "docs"
RECORD = json.loads((Path(program.__file__).parent / "intervals.json").read_text(encoding="utf-8"))


def test_recorded_intervals_miss_as_often_as_they_promise() -> None:
    beside_its_repeat = RECORD["contests"]["small, one run beside its repeat"]
    others = [found for found in RECORD["contests"].values() if found is not beside_its_repeat]
    for found in others:
        for system in ("even", "noisier"):
            assert 0.02 <= found[f"{system}_missed"] <= 0.08
    # why a table of one run says so
    assert beside_its_repeat["even_missed"] > max(found["even_missed"] for found in others)
    assert all(found["flagged"] < 0.06 for found in RECORD["two_runs"])


def test_program_makes_the_record_at_a_size_that_says_little(tmp_path: Path) -> None:
    program.main(["--contests", "20", "--pairs", "20", "--out", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text())
    assert made.keys() == RECORD.keys()
    assert made["contests"].keys() >= RECORD["contests"].keys()


def test_what_pages_say_of_intervals_is_in_the_record() -> None:
    protocol, results = (" ".join((DOCS / f"{name}.md").read_text().split()) for name in ("protocol", "results"))
    beside_its_repeat = RECORD["contests"]["small, one run beside its repeat"]
    (missed,) = {round(100 * beside_its_repeat[f"{system}_missed"]) for system in ("even", "noisier")}
    assert f"it misses a repeat of the run in {missed} % of cases instead of 5" in protocol
    low, high = (round(100 * bound(found["flagged"] for found in RECORD["two_runs"])) for bound in (min, max))
    assert f"Chance alone flags {low} to {high} % of unchanged cells: of 40, expect one or two." in results
    losses = {(found["builds"], found["spread"]): found["loss_found_9_times_in_10"] for found in RECORD["two_runs"]}
    for spread in (0.01, 0.02, 0.05):
        shown = [f"{100 * losses[builds, spread]:.2g} %" for builds in (3, 5)]
        assert f"| {100 * spread:.0f} % | {' | '.join(shown)} |" in results
