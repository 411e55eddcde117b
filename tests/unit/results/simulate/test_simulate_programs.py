"""The program of the simulator's speed runs, at a size that says little, and its record bears the page out."""

import json
import re
from pathlib import Path

import speed

RECORD = Path(speed.__file__).with_name("speed_single_ids.json")
PAGE = Path(speed.__file__).parents[2] / "docs" / "simulation.md"


def test_batches_of_single_ids_are_as_many_as_asked_for(tmp_path: Path) -> None:
    speed.main(["--policies", "lru", "--ids", "9000", "--out", str(tmp_path / "record.json")])
    found = json.loads((tmp_path / "record.json").read_text())["results"]["lru"]
    assert found["batches"] == 9000
    assert 0 < found["unique_misses_per_batch"] < 1
    assert found["million_batches_per_minute_with_building"] > 0


def test_the_page_says_what_the_record_has() -> None:
    results = json.loads(RECORD.read_text())["results"].values()
    speeds = [found["million_batches_per_minute_with_building"] for found in results]
    least, most = re.search(r"single ids, (\d+) to (\d+) million a minute", PAGE.read_text()).groups()
    assert (int(least), int(most)) == (round(min(speeds)), round(max(speeds)))
    assert min(speeds) >= 1, "what was asked for"
