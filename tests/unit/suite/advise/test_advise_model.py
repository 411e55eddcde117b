"""Predictions are sums of named costs."""

from __future__ import annotations

import pytest
from advise_scenes import AHEAD, LINES, RESIDENT, calibration, case
from hypothesis import given
from hypothesis import strategies as st

from suite.advise.calibrate.calibration import RowType
from suite.advise.costs import Counts
from suite.advise.model import CalibratedCosts, NotCalibrated, predict

COUNTS = Counts(lookups=192, distinct=100, misses=30, rows_fetched=30, rows_written_back=20)
COSTS = CalibratedCosts(calibration(LINES, RESIDENT, AHEAD))


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
    assert found.hit_rate == pytest.approx(0.7)
    assert found.hidden_s == {}


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
    with pytest.raises(NotCalibrated, match="3 tables and 128 samples"):
        predict(case("full_gpu", batch_size=128), COUNTS, COSTS)
