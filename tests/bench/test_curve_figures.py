"""The figures of miss-ratio curves, at their smallest."""

from __future__ import annotations

import json

import curve_figures


def test_figures_of_a_small_stream_are_recorded(tmp_path):
    curve_figures.main(["--scale", "smoke", "--sample", "0.2", "--batches", "9", "--out", str(tmp_path / "r.json")])
    record = json.loads((tmp_path / "r.json").read_text())
    assert {"speed", "accuracy", "planner"} <= record.keys()
    assert record["speed"]["exact"]["ids_per_s"] > 0
