import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.describe.loops import distance_bin
from workloads.describe.reuse import LruStack, bin_lows


def distances_by_moving_a_list(rows):
    """Reuse distances of a stream, None for first accesses: the definition, one list move per access."""
    stack, found = [], []
    for row in rows:
        found.append(stack.index(row) if row in stack else None)
        if row in stack:
            stack.remove(row)
        stack.insert(0, row)
    return found


def histogram_of(rows, *, table_rows, blocks=1):
    stack = LruStack(table_rows)
    for block in np.array_split(np.array(rows, np.int64), blocks):
        stack.access(block)
    return stack.histogram()


def as_counts(histogram):
    used = np.flatnonzero(histogram.reuses)
    return dict(zip(bin_lows(used).tolist(), histogram.reuses[used].tolist(), strict=True))


def test_distance_is_the_number_of_distinct_other_rows_in_between():
    a, b, c = 0, 1, 2
    histogram = histogram_of([a, b, c, a, c, c, b, b, a], table_rows=3)
    assert histogram.first == 3
    # a after b, c; c after a; c at once; b after c, a; b at once; a after c, b.
    assert as_counts(histogram) == {0: 2, 1: 1, 2: 3}


@given(st.lists(st.integers(0, 40), max_size=300), st.integers(1, 5))
def test_distances_equal_those_of_a_list_in_any_blocks(rows, blocks):
    expected = distances_by_moving_a_list(rows)
    histogram = histogram_of(rows, table_rows=41, blocks=blocks)
    assert histogram.first == expected.count(None)
    reuses = [distance for distance in expected if distance is not None]
    assert as_counts(histogram) == {distance: reuses.count(distance) for distance in set(reuses)}
    assert histogram.accesses == len(rows)


@pytest.mark.parametrize("table_rows", [1, 63, 64, 65, 1000])
def test_streams_that_outlast_the_slots_many_times_are_still_exact(table_rows):
    # A stack of so few rows has 4,096 slots: 20,000 accesses renumber them several times.
    draw = np.random.default_rng(table_rows)
    rows = np.minimum(draw.geometric(8 / table_rows if table_rows > 8 else 0.9, 20_000) - 1, table_rows - 1)
    expected = [distance for distance in distances_by_moving_a_list(rows.tolist()) if distance is not None]
    histogram = histogram_of(rows, table_rows=table_rows, blocks=7)
    bins = np.array([distance_bin(distance) for distance in expected])
    assert histogram.first == len(np.unique(rows))
    np.testing.assert_array_equal(np.bincount(bins, minlength=len(histogram.reuses)), histogram.reuses)


def test_going_round_in_a_circle_gives_every_reuse_the_same_distance():
    rows = 5_000
    histogram = histogram_of(np.tile(np.arange(rows), 4), table_rows=rows)
    assert histogram.first == rows
    (distance,) = as_counts(histogram)
    assert distance <= rows - 1 < distance * (1 + 1 / 128)
    assert histogram.by_powers_of_two()[-1] == (4096, 8191, 3 * rows)


@given(st.integers(0, 1 << 39))
def test_bins_hold_what_lies_between_their_ends(distance):
    number = distance_bin(distance)
    low, after = bin_lows(np.array([number, number + 1]))
    assert low <= distance < after
    assert after - low <= max(1, distance / 128)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=200), st.sampled_from([0.01, 0.5, 0.9, 1.0]))
def test_quantile_is_the_least_distance_that_the_share_does_not_exceed(rows, share):
    reuses = sorted(distance for distance in distances_by_moving_a_list(rows) if distance is not None)
    found = histogram_of(rows, table_rows=31).quantile(share)
    if not reuses:
        assert found is None
        return
    assert sum(distance <= found for distance in reuses) >= share * len(reuses)
    assert sum(distance < found for distance in reuses) < share * len(reuses)


@given(st.lists(st.integers(0, 30), max_size=200))
def test_lru_caches_of_every_power_of_two_hit_what_the_bins_say(rows):
    hits = 0
    for low, high, reuses in histogram_of(rows, table_rows=31).by_powers_of_two():
        assert low in {0, 1} or high == 2 * low - 1
        hits += reuses
        assert hits == hits_of_an_lru_cache(rows, slots=high + 1)


def hits_of_an_lru_cache(rows, *, slots):
    cached, hits = {}, 0
    for row in rows:
        hits += row in cached
        cached.pop(row, None)
        cached[row] = None
        if len(cached) > slots:
            del cached[next(iter(cached))]
    return hits


def test_nothing_accessed_has_no_distances():
    histogram = histogram_of([], table_rows=3)
    assert (histogram.accesses, histogram.quantile(0.5), histogram.by_powers_of_two()) == (0, None, [])
