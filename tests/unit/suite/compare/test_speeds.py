import pytest
from compare_scenes import OTHER_MACHINE, STEADY, compared, later, scaled, welch_interval

from suite.compare.speeds import Unjudged
from suite.records.status import Status
from tests.unit.suite.fabricate import BASELINE, record, rounds, verification


def speed_of(comparison, system):
    return next(cell for cell in comparison.cells if cell.pair.before.cell.system == system)


def test_ratio_and_interval_are_those_computed_independently(tmp_path):
    before, after = [1000.0, 1020.0, 990.0], [870.0, 905.0, 880.0, 899.0]
    speed = compared(tmp_path, rounds("cache", before), later("cache", after)).cells[0]
    ratio, low, high = welch_interval(after, before)
    assert speed.ratio.value == pytest.approx(ratio)
    assert (speed.ratio.low, speed.ratio.high) == (pytest.approx(low), pytest.approx(high))
    assert (speed.slower, speed.unjudged, [row.builds for row in speed.pair]) == (True, None, [9, 12])


def test_slower_come_before_faster_and_larger_before_smaller(tmp_path):
    factors = {"a": 1.2, "b": 0.9, "c": 1.0, "d": 0.5, "e": 3.0}
    found = compared(
        tmp_path,
        [one for name in factors for one in rounds(name, STEADY)],
        [one for name, factor in factors.items() for one in later(name, scaled(factor))],
    )
    assert [cell.pair.before.cell.system for cell in found.beyond_noise] == ["d", "b", "e", "a"]
    assert [cell.pair.before.cell.system for cell in found.cells if cell.quiet] == ["c"]


def test_one_round_of_several_builds_has_an_interval(tmp_path):
    found = compared(tmp_path, rounds("cache", [BASELINE]), later("cache", [0.9 * BASELINE]))
    assert (found.cells[0].slower, found.cells[0].pair.after.builds) == (True, 3)


def test_single_build_is_never_beyond_noise(tmp_path):
    once = {"setting": {"builds": 1}}
    found = compared(tmp_path, rounds("cache", [BASELINE], **once), later("cache", [0.01 * BASELINE], **once))
    assert (found.cells[0].beyond_noise, found.cells[0].quiet) == (False, False)


def test_machine_that_slowed_down_with_the_baseline_is_no_slower_code(tmp_path):
    found = compared(
        tmp_path,
        [*rounds("full_gpu", [BASELINE] * 3), *rounds("cache", scaled(0.5))],
        [
            *later("full_gpu", [BASELINE / 2] * 3, baseline=BASELINE / 2),
            *later("cache", scaled(0.25), baseline=BASELINE / 2),
        ],
    )
    speed = speed_of(found, "cache")
    assert [row.ratio for row in speed.pair] == [pytest.approx(0.5, rel=1e-3)] * 2
    assert speed.ratio.value == 1.0
    assert not speed.beyond_noise
    assert speed_of(found, "full_gpu").unjudged is Unjudged.IS_THE_BASELINE
    baseline = next(cell for cell in found.cells if cell.pair.before.cell.system == "full_gpu")
    assert [row.steps_per_s for row in baseline.pair] == [pytest.approx(100), pytest.approx(50)]


def test_wrong_baseline_measures_nobody(tmp_path):
    wrong = record("full_gpu", round=2, status=Status.WRONG_ANSWER, checked=verification(passed=False))
    before = [*rounds("full_gpu", [BASELINE] * 2), wrong, *rounds("cache", STEADY)]
    found = compared(tmp_path, before, [*later("full_gpu", [BASELINE] * 3), *later("cache", STEADY)])
    assert speed_of(found, "cache").unjudged is Unjudged.NO_BASELINE


def test_system_that_computes_as_another_has_no_speed(tmp_path):
    same = [record("fbgemm_uvm", computes_as="full_gpu", started_at=day) for day in ("2026-11-01", "2026-11-02")]
    found = compared(tmp_path, same[:1], same[1:])
    assert [(cell.unjudged, cell.quiet) for cell in found.cells] == [(Unjudged.NOT_MEASURED, True)]


def test_records_copied_from_one_run_to_the_other_are_no_second_measurement(tmp_path):
    shared = rounds("cache", STEADY)
    found = compared(tmp_path, shared, [*shared, *later("cache", STEADY, setting={"seed": 2})])
    assert [cell.unjudged for cell in found.cells] == [Unjudged.SAME_RECORDS]
    assert found.cells[0].ratio is None


def test_speeds_of_two_machines_are_shown_and_decide_nothing(tmp_path):
    found = compared(tmp_path, rounds("cache", STEADY), later("cache", scaled(0.75), where=OTHER_MACHINE))
    speed = speed_of(found, "cache")
    assert (speed.ratio.value, speed.unjudged) == (pytest.approx(0.75), Unjudged.ANOTHER_MACHINE)


def test_interval_tells_which_losses_it_can_show(tmp_path):
    steady = compared(tmp_path / "steady", rounds("cache", STEADY), later("cache", STEADY)).cells[0]
    noisy = compared(tmp_path / "noisy", rounds("cache", STEADY), later("cache", STEADY, noise=0.3)).cells[0]
    assert steady.shows(0.10)
    assert not steady.shows(0.001)
    assert not noisy.shows(0.10)
