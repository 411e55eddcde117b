"""Bounds are what can be reached and no more: against every possible choice, and their own rules told with sets."""

from collections.abc import Sequence

import pytest
from brute_force_bounds import BruteForceBelady, least_misses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, setting

from suite.simulate.models.belady import BeladyModel, CompulsoryModel
from suite.simulate.models.model import Tally, replay
from suite.simulate.trace import replayed
from systems.freq_cache.cache.policy import level_of

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WAYS = [(bypass, warm) for bypass in ("off", "on") for warm in ("off", "frequent")]


class RowTrace(ListedTrace):
    """Rows written out batch by batch, repeats welcome; the first half of them is one table, the rest another."""

    def __init__(self, rows: int, batches: Sequence[Sequence[int]], frequencies: Sequence[int] | None = None) -> None:
        in_order = [sorted(batch, key=lambda row: row >= rows // 2) for batch in batches]
        super().__init__((rows // 2, rows - rows // 2), in_order, range(rows) if frequencies is None else frequencies)

    def start(self, warm: str, slots: int) -> frozenset[int]:
        """The rows that a cache may start with."""
        levels = [level_of(int(frequency)) for frequency in self.counts]
        lowest = {"off": 1 << 30, "frequent": sorted(levels)[-min(slots, self.rows)]}[warm]
        return frozenset(row for row in range(self.rows) if levels[row] >= lowest)

    @property
    def sets(self) -> list[frozenset[int]]:
        return [frozenset(batch) for batch in self.batches]


def batches_of(rows: int, *, most: int, longest: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, rows - 1), max_size=longest), min_size=1, max_size=most)


@pytest.mark.parametrize(("bypass", "warm"), WAYS)
@SETTINGS
@given(batches=batches_of(6, most=6, longest=5), slots=st.integers(1, 5), data=st.data())
def test_no_choice_of_rows_misses_fewer(
    bypass: str, warm: str, batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(6, batches, data.draw(st.lists(st.sampled_from([0, 1, 2, 50, 51, 90]), min_size=6, max_size=6)))
    counted_from = data.draw(st.integers(0, trace.length))
    tally = replay(BeladyModel(setting(trace, slots, counted_from), {"bypass": bypass, "warm": warm}))
    assert tally.unique_misses == least_misses(
        trace.sets, slots=slots, bypass=bypass == "on", start=trace.start(warm, slots), counted_from=counted_from
    )


@pytest.mark.parametrize(("bypass", "warm"), WAYS)
@SETTINGS
@given(batches=batches_of(40, most=25, longest=16), slots=st.integers(1, 45), data=st.data())
def test_every_batch_is_as_the_rule_says(
    bypass: str, warm: str, batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(40, batches, data.draw(st.lists(st.integers(0, 9), min_size=40, max_size=40)))
    counted_from = data.draw(st.sampled_from([0, 1, trace.length // 2]))
    expected = BruteForceBelady(
        trace.sets, slots=slots, bypass=bypass == "on", start=trace.start(warm, slots), counted_from=counted_from
    )
    model = BeladyModel(setting(trace, slots, counted_from), {"bypass": bypass, "warm": warm})
    misses, back = [], []
    for batch in replayed(trace, 0, trace.length):
        tally = Tally()
        model.step(batch, tally)
        misses.append(tally.unique_misses)
        back.append(tally.rows_written_back)
    assert misses[counted_from:] == expected.misses[counted_from:]
    assert back[counted_from:] == expected.back[counted_from:]


def test_only_first_uses_are_compulsory() -> None:
    trace = RowTrace(6, [[0, 1], [1, 2, 2], [0, 3], [4, 0]])
    cold, frequent = (replay(CompulsoryModel(setting(trace, 2, 1), {"warm": warm})) for warm in ("off", "frequent"))
    assert (cold.unique_misses, cold.lookup_misses, cold.rows_written_back) == (3, 4, 0)
    assert frequent.unique_misses == 2  # rows 4 and 5 are the most frequent
