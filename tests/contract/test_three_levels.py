"""A cell of three levels verifies three levels, and `levels=2` two."""

from typing import Any

import pytest
from scenes import verification_of

from systems.contract import HostBytes
from systems.freq_cache import FreqCache
from systems.freq_cache.tiers.ram_index import RamIndex


@pytest.mark.parametrize(
    ("asked", "levels"),
    [
        ("freq_cache[tier=file]", 3),
        ("freq_cache[slow_rows=fp16,tier=file]", 3),
        ("freq_cache[levels=2,tier=file]", 2),
    ],
)
def test_verification_moves_rows_through_ram_where_the_cell_has_that_level(
    asked: str, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, enter = [], RamIndex.enter

    def noted(self: RamIndex, rows: Any, *places: Any, **named: Any) -> None:
        entered.append(rows.size)
        enter(self, rows, *places, **named)

    monkeypatch.setattr(RamIndex, "enter", noted)
    budget = HostBytes(total_bytes=64 << 20, device_bytes=4 << 20)
    assert verification_of(FreqCache, asked, budget=budget).passed
    assert (sum(entered) > 0) == (levels == 3)
