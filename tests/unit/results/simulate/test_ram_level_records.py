"""What docs/disk.md says of three levels is what the records say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
RECORDS = [json.loads(path.read_text()) for path in sorted((ROOT / "results/simulate/ram_level").glob("*.json"))]
PAGE = " ".join((ROOT / "docs" / "disk.md").read_text().split())


def misses(record: dict[str, Any], policy: str) -> int:
    (row,) = (row for row in record["rows"] if row["policy"] == policy)
    return int(row["traffic"]["unique_misses"])


@pytest.mark.parametrize("policy", ["static", "lfu", "lru"])
def test_the_page_says_what_the_drive_gives_beside_two_levels_of_the_same_rows(policy: str) -> None:
    assert len(RECORDS) == 3
    plain = f"freq_cache[policy={policy}]"
    ratios = [misses(one, plain.replace("]", ",ram=3]")) / misses(one, plain) for one in RECORDS]
    assert max(ratios) <= 1.15
    assert re.search(rf"{min(ratios):.2f} to {max(ratios):.2f} times[^`]*with `{policy}`", PAGE)


def test_the_page_says_what_the_best_rule_would_miss() -> None:
    ratios = [one["rows"][0]["least"]["unique_misses"] / misses(one, "freq_cache[policy=static]") for one in RECORDS]
    assert f"is at {min(ratios):.2f} to {max(ratios):.2f} of `static`" in PAGE
