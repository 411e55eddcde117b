"""What policies think of rows: the keys they give, what they learn, and what they would fill a cache with."""

from collections import Counter

import numpy as np
import pytest
from brute_force_planner import level
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from systems.freq_cache.cache.policy import LFU, Policy, StaticFrequency

SETTINGS = settings(max_examples=80, deadline=None)
COUNTS = st.lists(st.integers(0, 6) | st.integers(0, 2**40), min_size=1, max_size=30)


def int32s(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def static(*tables: list[int]) -> StaticFrequency:
    return StaticFrequency([np.array(counts, np.int64) for counts in tables])


def used(policy: Policy, rows: list[int], *, times: int = 1, learn: bool = True, batch: int = 0) -> list[int]:
    return policy.keys(int32s(*rows), np.full(len(rows), times, np.int32), batch=batch, learn=learn).tolist()


@SETTINGS
@given(left=COUNTS, right=COUNTS)
def test_static_keys_are_levels_of_the_frequencies_table_after_table(left: list[int], right: list[int]) -> None:
    policy = static(left, right)
    everything = list(range(len(left) + len(right)))
    assert used(policy, everything[::-1]) == [level(min(count, 2**31)) for count in (left + right)[::-1]]


@SETTINGS
@given(counts=COUNTS, rows=st.integers(0, 40))
def test_static_would_fill_a_cache_with_the_rows_of_the_highest_levels_first_of_equals_the_lower(
    counts: list[int], rows: int
) -> None:
    ranked = sorted(range(len(counts)), key=lambda row: (-level(min(counts[row], 2**31)), row))
    best = static(counts).best(rows)
    assert best.dtype == np.int32
    assert best.tolist() == ranked[:rows]


@pytest.mark.parametrize("tables", [([-1],), ([0, 3], [5, -2, 1])], ids=["one table", "the second table"])
def test_negative_frequencies_are_refused(tables: tuple[list[int], ...]) -> None:
    with pytest.raises(ValueError, match="negative"):
        static(*tables)


@SETTINGS
@given(
    batches=st.lists(
        st.tuples(st.dictionaries(st.integers(0, 9), st.integers(1, 40_000)), st.booleans()), min_size=1, max_size=12
    )
)
def test_lfu_key_is_the_level_of_what_training_has_used_up_to_saturation(
    batches: list[tuple[dict[int, int], bool]],
) -> None:
    policy, counts = LFU(10), Counter[int]()
    for number, (occurrences, learn) in enumerate(batches):
        rows = list(occurrences)
        if learn:
            counts.update(occurrences)
        times = int32s(*occurrences.values())
        keys = policy.keys(int32s(*rows), times, batch=number, learn=learn)
        assert keys.tolist() == [level(min(counts[row], 65_535)) for row in rows]
    assert policy.state is not None
    assert policy.state.tolist() == [min(counts[row], 65_535) for row in range(10)]
