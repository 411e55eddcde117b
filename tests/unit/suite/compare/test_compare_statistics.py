from __future__ import annotations

import math

import numpy as np
import pytest
from compare_scenes import student_quantile, welch_interval

from suite.tables.statistics import unpaired_ratio


def numbered(speeds) -> dict[int, float]:
    return dict(enumerate(float(speed) for speed in speeds))


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (30, 2.0423)])
def test_quantile_that_the_tests_rest_on_is_the_textbooks(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, abs=2e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([90.0, 92.0, 91.0], [100.0, 101.0, 104.0]),
        ([90.0, 140.0], [100.0, 101.0, 104.0, 99.0, 100.5]),
        ([70.0, 71.0, 72.5, 69.0, 70.2, 70.7], [100.0, 60.0]),
        (list(range(100, 140)), list(range(90, 120))),
    ],
)
def test_interval_is_welchs_on_the_logarithms(ours, theirs):
    found = unpaired_ratio(numbered(ours), numbered(theirs))
    ratio, low, high = welch_interval(ours, theirs)
    assert found.ratio == pytest.approx(ratio, rel=1e-12)
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))
    assert found.rounds == min(len(ours), len(theirs))


def test_interval_of_a_worked_example():
    # logarithms 0, 1, 2 and 0, 2, 4: standard error sqrt(1/3 + 4/3), (5/3)^2 / (1/18 + 16/18) = 2.94 degrees, so 2
    found = unpaired_ratio(numbered(np.exp([0, 1, 2])), numbered(np.exp([0, 2, 4])))
    half = 4.3027 * math.sqrt(5 / 3)
    assert math.log(found.ratio) == pytest.approx(-1)
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(-1 - half), pytest.approx(-1 + half))


def test_exchanged_sides_give_the_reciprocal():
    ours, theirs = numbered([90.0, 92.0, 97.0]), numbered([100.0, 101.0])
    one, other = unpaired_ratio(ours, theirs), unpaired_ratio(theirs, ours)
    assert (one.ratio, one.low, one.high) == tuple(
        pytest.approx(1 / value) for value in (other.ratio, other.high, other.low)
    )


def test_round_numbers_do_not_matter():
    ours, theirs = {0: 90.0, 1: 92.0, 2: 97.0}, {0: 100.0, 1: 101.0, 2: 99.0}
    assert unpaired_ratio(ours, theirs) == unpaired_ratio({7: 97.0, 8: 90.0, 9: 92.0}, {2: 100.0, 1: 101.0, 0: 99.0})


@pytest.mark.parametrize(("ours", "theirs"), [([90.0], [100.0, 101.0]), ([90.0, 91.0], [100.0]), ([90.0], [100.0])])
def test_one_round_on_either_side_has_no_interval(ours, theirs):
    found = unpaired_ratio(numbered(ours), numbered(theirs))
    assert (found.low, found.high, found.rounds, found.spans_one) == (None, None, 1, True)


def test_rounds_that_do_not_differ_leave_no_doubt():
    found = unpaired_ratio(numbered([80.0, 80.0]), numbered([100.0, 100.0]))
    assert found.ratio == found.low == found.high == pytest.approx(0.8)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_speed_that_is_none_is_refused_by_welch(speed):
    with pytest.raises(ValueError, match="must be positive"):
        unpaired_ratio({0: 1.0}, {0: speed})


def test_side_without_rounds_is_refused():
    with pytest.raises(ValueError, match="no round"):
        unpaired_ratio({}, {0: 1.0})


@pytest.mark.parametrize("spreads", [(0.02, 0.02), (0.02, 0.10)])
@pytest.mark.parametrize("rounds", [3, 5])
def test_noise_alone_is_flagged_no_more_often_than_promised(rounds, spreads):
    draws = np.random.default_rng(20261122 + rounds)
    trials, flagged = 6000, 0
    for _ in range(trials):
        ours, theirs = (1000 * np.exp(draws.normal(0, spread, rounds)) for spread in spreads)
        flagged += not unpaired_ratio(numbered(ours), numbered(theirs)).spans_one
    # 5 % by construction, less since degrees of freedom are rounded down; none at all would be no interval either
    assert 0.01 < flagged / trials <= 0.06


def test_interval_covers_a_true_loss_and_finds_it():
    draws = np.random.default_rng(7)
    trials, covered, found = 2000, 0, 0
    for _ in range(trials):
        ours, theirs = (speed * np.exp(draws.normal(0, 0.01, 5)) for speed in (900.0, 1000.0))
        ratio = unpaired_ratio(numbered(ours), numbered(theirs))
        covered += ratio.low <= 0.9 <= ratio.high
        found += ratio.high < 1
    assert covered / trials >= 0.94
    assert found / trials > 0.99
