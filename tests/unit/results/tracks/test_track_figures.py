"""The board of tracks, at sizes that say little: what it measures is for full streams."""

import json
from pathlib import Path

import drift_board
import pytest

from workloads.streams.tracks import TRACKS

TRACKED = ["criteo_kaggle", *(f"criteo_kaggle@{track}" for track in TRACKS)]
TINY = ["--rows", "20000", "--batch-size", "100"]


@pytest.mark.slow
def test_the_board_has_a_line_for_every_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBEDDING_OFFLOAD_DATA", str(tmp_path))  # which has no real rows
    drift_board.main([*TINY, "--ratio", "0.2", "--steps", "60", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "board.json").read_text())
    assert list(record["streams"]) == TRACKED
    drift = record["streams"]["criteo_kaggle@drift"]
    assert list(drift["misses"]) == list(drift_board.POLICIES)
    assert [len(found) for found in drift["misses"].values()] == [15] * 9 + [10]
    by_policy = {name: sum(found[-10:]) for name, found in drift["misses"].items()}
    assert min(by_policy, key=by_policy.__getitem__) == "belady"
    assert by_policy["static"] < by_policy["static, first tenth"]
    assert by_policy["lfu"] < by_policy["static"]
    assert capsys.readouterr().out.count("| criteo_kaggle") == len(TRACKED)
    assert (tmp_path / "board.svg").stat().st_size > 10_000
