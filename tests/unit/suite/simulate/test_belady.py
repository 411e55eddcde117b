"""Bounds are what can be reached and no more: against every possible choice, policies, and their own rules."""

import pytest
from bounds_scenes import (
    SETTINGS,
    RowTrace,
    batches_of,
    belady,
    by_batch,
)
from brute_force_bounds import BruteForceBelady, least_misses
from hypothesis import given
from hypothesis import strategies as st
from listed_traces import setting

from suite.simulate.models.belady import BeladyModel, CompulsoryModel
from suite.simulate.models.model import replay


@pytest.mark.parametrize("bypass", ["off", "on"])
@pytest.mark.parametrize("warm", ["off", "any", "frequent"])
@SETTINGS
@given(batches=batches_of(6, most=6, longest=5), slots=st.integers(1, 5), data=st.data())
def test_no_choice_of_rows_misses_fewer(
    bypass: str, warm: str, batches: list[list[int]], slots: int, data: st.DataObject
) -> None:
    trace = RowTrace(6, batches, data.draw(st.lists(st.sampled_from([0, 1, 2, 50, 51, 90]), min_size=6, max_size=6)))
    counted_from = data.draw(st.integers(0, trace.length))
    _, tally = belady(trace, slots=slots, bypass=bypass, warm=warm, counted_from=counted_from)
    assert tally.unique_misses == least_misses(
        trace.sets, slots=slots, bypass=bypass == "on", start=trace.start(warm, slots), counted_from=counted_from
    )


@pytest.mark.parametrize("bypass", ["off", "on"])
@pytest.mark.parametrize("warm", ["off", "any", "frequent"])
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
    misses, back = by_batch(model)
    assert misses[counted_from:] == expected.misses[counted_from:]
    assert back[counted_from:] == expected.back[counted_from:]


def test_only_first_uses_are_compulsory() -> None:
    trace = RowTrace(6, [[0, 1], [1, 2, 2], [0, 3], [4, 0]])
    cold = replay(CompulsoryModel(setting(trace, 2, 1), {"warm": "off"}))
    assert (cold.unique_misses, cold.lookup_misses, cold.rows_written_back) == (3, 4, 0)
    warm = replay(CompulsoryModel(setting(trace, 2, 1), {"warm": "any"}))
    assert warm.unique_misses == 1
    frequent = replay(CompulsoryModel(setting(trace, 2, 1), {"warm": "frequent"}))
    assert frequent.unique_misses == 2  # rows 4 and 5 are the most frequent
