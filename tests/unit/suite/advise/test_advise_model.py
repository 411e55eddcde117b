"""Predictions are sums of named costs, which are lines over what a step counts."""

import numpy as np
import pytest
from advise_scenes import calibration, case
from hypothesis import given
from hypothesis import strategies as st

from suite.advise.case import RowType
from suite.advise.costs import Counts, Line, NotCalibrated
from suite.advise.prediction import predict
from suite.simulate.models.model import Tally

COUNTS = Counts(lookups=192, distinct=100, misses=30, rows_fetched=30, rows_written_back=20)
COSTS = calibration()
COUNTED = ("lookups", "distinct", "misses", "moved")
POINTS = [
    Counts(lookups=n, distinct=u, misses=m, rows_fetched=m, rows_written_back=w)
    for n, u, m, w in (
        (100, 90, 80, 70),
        (100, 20, 5, 2),
        (25, 24, 20, 0),
        (100, 90, 10, 10),
        (60, 50, 1, 9),
        (10, 9, 9, 1),
    )
]


@given(st.lists(st.floats(0, 1e-3), min_size=5, max_size=5))
def test_line_is_found_again_from_its_own_points(coefficients: list[float]) -> None:
    line = Line(fixed_s=coefficients[0], per_s=dict(zip(COUNTED, coefficients[1:], strict=True)))
    found = Line.through(POINTS, [line.seconds(counts) for counts in POINTS], over=COUNTED)
    for counts in POINTS:
        assert found.seconds(counts) == pytest.approx(line.seconds(counts), rel=1e-6, abs=1e-9)


def test_no_coefficient_is_negative_and_no_line_of_the_same_kind_comes_closer() -> None:
    sizes = (100, 200, 300)
    falling = Line.through([Counts(lookups=n, distinct=0) for n in sizes], [1 - n / 1000 for n in sizes], over=COUNTED)
    assert (falling.per_s["lookups"], falling.fixed_s) == (0, pytest.approx(0.8))
    generator = np.random.default_rng(0)
    seconds = generator.random(len(POINTS)).tolist()

    def far(fixed_s: float, per_s: dict[str, float]) -> float:
        line = Line(fixed_s=max(0, fixed_s), per_s={name: max(0, per) for name, per in per_s.items()})
        return sum((line.seconds(counts) - value) ** 2 for counts, value in zip(POINTS, seconds, strict=True))

    best = Line.through(POINTS, seconds, over=("lookups", "misses"))
    for _ in range(100):
        fixed, *per = 1e-3 * generator.normal(size=3)
        near = {name: found + by for (name, found), by in zip(best.per_s.items(), per, strict=True)}
        assert far(best.fixed_s + fixed, near) >= far(best.fixed_s, best.per_s) - 1e-12


def test_counts_are_averages_of_a_tally_and_misses_multiply_up_to_all_distinct_rows() -> None:
    sums = {"lookups": 400, "unique_ids": 200, "unique_misses": 40, "rows_fetched": 36, "rows_written_back": 20}
    counts = Counts.of(Tally(np.zeros((1, 2), np.int64), batches=4, overflow_batches=1, **sums), largest=77)
    assert (counts.lookups, counts.distinct, counts.misses, counts.moved) == (100, 50, 10, 14)
    assert (counts.overflow_share, counts.largest) == (0.25, 77)
    assert (counts.with_misses(2).misses, counts.with_misses(2).moved) == (20, 28)
    assert counts.with_misses(100).misses == 50
    assert Counts(lookups=1, distinct=1).with_misses(7).misses == 0


def test_terms_are_their_lines_and_add_up_to_the_step() -> None:
    found = predict(case("freq_cache"), COUNTS, COSTS)
    assert found.terms_s == {
        "dense": 0.01,
        "calls": pytest.approx(3e-3),
        "lookup": pytest.approx(192e-6),
        "update": pytest.approx(200e-6),
        "planning": pytest.approx(90e-6),
        "moving": pytest.approx(200e-6),
    }
    assert found.step_s == pytest.approx(sum(found.terms_s.values()))
    assert found.samples_per_s == pytest.approx(64 / found.step_s)
    assert (found.basis, found.slots, found.cache_ratio) == ("calibrated", 410, 0.5)
    assert (found.hit_rate, found.hidden_s) == (pytest.approx(0.7), {})


def test_planning_beside_training_is_hidden_but_for_what_training_loses() -> None:
    found = predict(case("freq_cache[look_ahead=4]"), COUNTS, COSTS)
    assert found.terms_s["planning"] == pytest.approx(30e-6)
    assert found.hidden_s == {"planning": pytest.approx(120e-6)}


def test_system_without_a_cache_has_no_hit_rate() -> None:
    found = predict(case("fbgemm_uvm"), Counts(lookups=192, distinct=100), COSTS)
    assert (found.cache_ratio, found.hit_rate, found.slots) == (None, None, 0)
    assert set(found.terms_s) == {"dense", "calls", "lookup", "update"}


@given(st.floats(1, 3.3))
def test_more_misses_are_never_faster(factor: float) -> None:
    fewer, more = (predict(case("freq_cache"), counts, COSTS) for counts in (COUNTS, COUNTS.with_misses(factor)))
    assert more.step_s >= fewer.step_s


def test_what_was_not_calibrated_is_refused_with_the_reason() -> None:
    with pytest.raises(NotCalibrated, match="reference was not calibrated: no such thing"):
        predict(case("reference"), COUNTS, COSTS)
    with pytest.raises(NotCalibrated, match="full_gpu fp16 was not calibrated: it was not asked for"):
        predict(case("full_gpu", row_type=RowType.FP16), COUNTS, COSTS)
