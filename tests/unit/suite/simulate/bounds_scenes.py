"""What the tests of bounds share: rows written out batch by batch."""

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace

from systems.freq_cache.cache.policy import level_of

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class RowTrace(ListedTrace):
    """Rows written out batch by batch, repeats welcome; the first half of them is one table, the rest another."""

    def __init__(
        self, rows: int, batches: Sequence[Sequence[int]], frequencies: Sequence[int] | None = None
    ) -> None:
        in_order = [sorted(batch, key=lambda row: row >= rows // 2) for batch in batches]
        super().__init__((rows // 2, rows - rows // 2), in_order, range(rows) if frequencies is None else frequencies)

    def start(self, warm: str, slots: int) -> frozenset[int]:
        """The rows that a cache may start with."""
        levels = [level_of(int(frequency)) for frequency in self.counts]
        lowest = {"off": 1 << 30, "any": 0, "frequent": sorted(levels)[-min(slots, self.rows)]}[warm]
        return frozenset(row for row in range(self.rows) if levels[row] >= lowest)

    @property
    def sets(self) -> list[frozenset[int]]:
        return [frozenset(batch) for batch in self.batches]


def batches_of(rows: int, *, most: int, longest: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, rows - 1), max_size=longest), min_size=1, max_size=most)
