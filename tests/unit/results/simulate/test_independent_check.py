"""The misses that libCacheSim counted are those that our models count today."""

import json
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
