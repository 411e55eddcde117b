"""The misses that libCacheSim counted are those that our models count today."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import independent_check
import pytest

RECORD = json.loads(Path(independent_check.__file__).with_suffix(".json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("stream", independent_check.STREAMS)
def test_our_misses_are_those_of_the_record_and_of_libcachesim(stream):
    points = [point for point in RECORD["points"] if point["stream"] == stream]
    assert len(points) == len(independent_check.POLICIES) * len(independent_check.SLOTS)
    counts = independent_check.ours(independent_check.stream(stream))
    for point in points:
        assert counts[point["policy"]][point["slots"]] == point["misses"]
        assert point["libcachesim_misses"] == point["misses"]
        assert point["misses"] < 0.99 * RECORD["accesses"]


def test_another_environments_counts_are_compared_and_a_difference_is_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(independent_check, "ACCESSES", 300)
    monkeypatch.setattr(independent_check, "SLOTS", (10,))
    monkeypatch.setattr(independent_check, "STREAMS", ("skewed",))
    fake = tmp_path / "libcachesim.py"
    fake.write_text(
        "class Request:\n    def __init__(self, obj_id, obj_size, next_access_vtime):\n        pass\n"
        "class LRU:\n    def __init__(self, cache_size):\n        pass\n"
        "    def get(self, request):\n        return False\n"
        "Belady = LRU\n"
    )
    (tmp_path / "libcachesim-0.dist-info").mkdir()
    (tmp_path / "libcachesim-0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: libcachesim\nVersion: 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit) as end:
        independent_check.main(["--other", sys.executable, "--out", str(tmp_path / "record.json")])
    assert end.value.code == 1
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["libcachesim"] == "0"
    assert {point["libcachesim_misses"] for point in record["points"]} == {300}
    assert "lru" in capsys.readouterr().out
