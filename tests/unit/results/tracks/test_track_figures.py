"""The figures' commands run, at sizes that say little: what they measure is for full streams."""

from __future__ import annotations

import json
from pathlib import Path

import track_figures

from workloads.streams.tracks import TRACKS

TINY = ["--rows", "20000", "--batch-size", "100", "--ratio", "0.2"]


def test_drawing_leaves_a_record_of_every_track(tmp_path: Path) -> None:
    track_figures.main(["drawing", *TINY, "--steps", "8", "--out", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert list(record["results"]) == ["criteo_kaggle", *(f"criteo_kaggle@{track}" for track in TRACKS)]
    assert record["environment"]["cpu"]


def test_drift_costs_static_frequencies_more_than_lru(tmp_path: Path) -> None:
    track_figures.main(["misses", *TINY, "--steps", "60", "--out", str(tmp_path / "record.json")])
    found = json.loads((tmp_path / "record.json").read_text())["results"]["criteo_kaggle@drift"]
    assert found["static"]["relative_to_plain"] > found["lru"]["relative_to_plain"]
    assert found["static, prefix"]["unique_misses"] > found["static"]["unique_misses"]
