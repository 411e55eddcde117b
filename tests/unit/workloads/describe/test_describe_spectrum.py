import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.describe.spectrum import Spectrum

COUNTS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 1 << 40)), max_size=60)


def of(counts):
    return Spectrum.of(np.array(counts, np.int64))


@given(COUNTS)
def test_sums_and_the_curve_equal_those_of_the_sorted_counts(counts):
    spectrum = of(counts)
    assert spectrum.distinct == sum(count > 0 for count in counts)
    assert spectrum.seen_once == counts.count(1)
    falling = sorted((count for count in counts if count), reverse=True)
    ranks, accesses = spectrum.curve(10_000)
    assert ranks.tolist() == list(range(1, len(falling) + 1))
    assert accesses.tolist() == falling


@given(st.lists(COUNTS, min_size=1, max_size=5))
def test_merged_spectra_are_those_of_all_counts_together(parts):
    merged = Spectrum.merged(of(counts) for counts in parts)
    together = of([count for counts in parts for count in counts])
    np.testing.assert_array_equal(merged.frequencies, together.frequencies)
    np.testing.assert_array_equal(merged.ids, together.ids)


def test_top_share_rounds_up_to_whole_ids():
    spectrum = of([50, 28, 3, *[1] * 19, 0, 0])  # 22 ids seen, 100 accesses
    assert spectrum.top_share(0.001) == 0.5
    assert spectrum.top_share(0.1) == 0.81  # 2.2 ids
    assert of([70, 28, 1, 1, *[0] * 9]).top_share(0.5) == 0.98
    assert of(range(1, 31)).top_share(0.1) == (30 + 29 + 28) / 465
    assert spectrum.top_share(1.0) == 1.0
    assert of([0, 0]).top_share(0.5) is None


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_exponent_of_a_power_law_is_found(exponent):
    counts = np.rint(1e9 * np.arange(1.0, 20_001) ** -exponent).astype(np.int64)
    assert of(np.random.default_rng(0).permutation(counts)).zipf_exponent() == pytest.approx(exponent, abs=0.01)


def test_exponent_leaves_out_ids_seen_once_and_needs_ten_others():
    law = [2000 // rank for rank in range(1, 11)]
    assert of([*law, *[1] * 50_000]).zipf_exponent() == of(law).zipf_exponent()
    assert of([*law[:9], *[1] * 50_000]).zipf_exponent() is None
