import pytest
from compare_scenes import STEADY, compared, later, scaled, welch_interval

from suite.compare.compare import Unjudged
from tests.unit.suite.fabricate import BASELINE, rounds


def speed_of(comparison, system):
    return next(cell for cell in comparison.cells.to_dict("records") if cell["row_a"].system == system)


def test_ratio_and_interval_are_those_computed_independently(tmp_path):
    before, after = [1000.0, 1020.0, 990.0], [870.0, 905.0, 880.0, 899.0]
    speed = speed_of(compared(tmp_path, rounds("cache", before), later("cache", after)), "cache")
    ratio, low, high = welch_interval(after, before)
    assert speed["ratio"] == pytest.approx(ratio) and ratio < 1
    assert (speed["low"], speed["high"]) == (pytest.approx(low), pytest.approx(high))
    assert (bool(speed["beyond_noise"]), speed["unjudged"]) == (True, None)


def test_machine_that_slowed_down_with_the_baseline_is_no_slower_code(tmp_path):
    slow = BASELINE / 2
    found = compared(
        tmp_path,
        [*rounds("full_gpu", [BASELINE] * 3), *rounds("cache", scaled(0.5))],
        [*later("full_gpu", [slow] * 3, baseline=slow), *later("cache", scaled(0.25), baseline=slow)],
    )
    speed = speed_of(found, "cache")
    assert [speed[name].ratio.value for name in ("row_a", "row_b")] == [pytest.approx(0.5, rel=1e-3)] * 2
    assert speed["ratio"] == 1.0
    assert not speed["beyond_noise"]
    baseline = speed_of(found, "full_gpu")
    assert baseline["unjudged"] is Unjudged.IS_THE_BASELINE
    assert [baseline[name].steps_per_s for name in ("row_a", "row_b")] == [pytest.approx(100), pytest.approx(50)]


def test_records_copied_from_one_run_to_the_other_are_no_second_measurement(tmp_path):
    shared = rounds("cache", STEADY)
    found = compared(tmp_path, shared, [*shared, *later("cache", STEADY, setting={"seed": 2})])
    assert found.both["unjudged"].to_list() == [Unjudged.SAME_RECORDS]
    assert found.both["ratio"].isna().all()
