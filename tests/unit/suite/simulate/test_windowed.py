"""A window of coming batches does as its rule says, and lies between no window and all of the future."""

import pytest
from bounds_scenes import (
    FEW,
    SETTINGS,
    RowTrace,
    batches_of,
    belady,
    by_batch,
    windowed,
)
from brute_force_bounds import windowed_misses
from hypothesis import given
from hypothesis import strategies as st

from suite.simulate.models.bounds.belady import BeladyModel
from suite.simulate.models.bounds.windowed import WindowedModel
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.traces.trace import WorkloadTrace, replayed
from workloads.streams.synthetic import SyntheticWorkload


@pytest.mark.parametrize("warm", ["off", "frequent"])
@SETTINGS
@given(
    batches=batches_of(30, most=20, longest=14),
    slots=st.integers(1, 32),
    look_ahead=st.sampled_from([0, 1, 2, 4, 8]),
    frequencies=st.permutations(range(30)),
)
def test_windowed_does_as_its_rule_says(
    warm: str, batches: list[list[int]], slots: int, look_ahead: int, frequencies: list[int]
) -> None:
    trace = RowTrace(30, batches, frequencies)
    model = windowed(trace, slots=slots, look_ahead=look_ahead, warm=warm)
    misses, back = by_batch(model)
    expected, left = windowed_misses(
        trace.sets, slots=min(slots, 30), look_ahead=look_ahead, warm=warm != "off", frequencies=frequencies
    )
    assert misses == expected
    if warm == "off":
        assert back == left
    else:  # rows of the start that were never used leave unchanged
        assert all(written <= gone for written, gone in zip(back, left, strict=True))
        assert sum(left) - sum(back) <= slots


@SETTINGS
@given(
    batches=batches_of(20, most=15, longest=12),
    slots=st.integers(1, 22),
    frequencies=st.lists(st.integers(0, 3), min_size=20, max_size=20),
)
def test_a_window_over_the_whole_replay_misses_as_few_as_belady(
    batches: list[list[int]], slots: int, frequencies: list[int]
) -> None:
    trace = RowTrace(20, batches, frequencies)
    model = windowed(trace, slots=slots, look_ahead=32, warm="off")
    assert replay(model).unique_misses == belady(trace, slots=slots, warm="off")[1].unique_misses


@FEW
@given(batches=batches_of(24, most=20, longest=8), slots=st.integers(8, 26))
def test_of_equally_frequent_rows_the_one_used_longest_ago_leaves(batches: list[list[int]], slots: int) -> None:
    trace = RowTrace(24, batches, [7] * 24)
    stack: list[int] = []  # the row used longest ago first
    misses = 0
    for batch in replayed(trace, 0, trace.length):
        rows = batch.unique[0].tolist()
        misses += sum(row not in stack for row in rows)
        stack = ([row for row in stack if row not in rows] + rows)[-slots:]
    assert replay(windowed(trace, slots=slots, look_ahead=0)).unique_misses == misses


def test_a_longer_window_misses_fewer_on_a_synthetic_stream() -> None:
    made = SyntheticWorkload.create("criteo_kaggle", batch_size=256, seed=3, max_rows=200_000)
    trace = WorkloadTrace(made)
    span = Span(counted_from=10, stop=40)
    setting = Setting(trace=trace, span=span, slots=20_000)
    found = [
        replay(WindowedModel(setting, {"look_ahead": n, "warm": "off"})).unique_misses for n in ("0", "1", "4", "16")
    ]
    bound = replay(BeladyModel(setting, {"bypass": "off", "warm": "off"})).unique_misses
    assert found[0] > found[1] > found[2] > found[3] >= bound
