from __future__ import annotations

import pytest
from compare_scenes import OTHER_MACHINE, STEADY, compared, later, scaled, welch_interval

from suite.compare.compare import divisor_speeds
from suite.compare.runs import NoComparison
from suite.compare.speeds import Unjudged
from suite.records.status import Status
from tests.unit.suite.fabricate import environment, record, rounds

DRIFT = [1.0, 0.7, 1.3]
"""How fast the machine was in each round."""


def speed_of(comparison, system):
    return next(cell.speed for cell in comparison.cells if cell.pair.before.cell.system == system)


def test_ratio_and_interval_are_those_computed_independently(tmp_path):
    before, after = [1000.0, 1020.0, 990.0], [870.0, 905.0, 880.0, 899.0]
    speed = compared(tmp_path, rounds("cache", before), later("cache", after)).cells[0].speed
    ratio, low, high = welch_interval(after, before)
    assert speed.ratio.value == pytest.approx(ratio)
    assert (speed.ratio.low, speed.ratio.high) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))
    assert (speed.slower, speed.unjudged, speed.rounds) == (True, None, (3, 4))


def test_slower_come_before_faster_and_larger_before_smaller(tmp_path):
    factors = {"a": 1.2, "b": 0.9, "c": 1.0, "d": 0.5, "e": 3.0}
    found = compared(
        tmp_path,
        [one for name in factors for one in rounds(name, STEADY)],
        [one for name, factor in factors.items() for one in later(name, scaled(factor))],
    )
    assert [cell.pair.before.cell.system for cell in found.beyond_noise] == ["d", "b", "e", "a"]
    assert [cell.pair.before.cell.system for cell in found.quiet] == ["c"]


@pytest.mark.parametrize(("before", "after"), [(STEADY, [10.0]), ([10.0], STEADY), ([1000.0], [10.0])])
def test_one_round_is_never_beyond_noise(tmp_path, before, after):
    found = compared(tmp_path, rounds("cache", before), later("cache", after))
    assert (found.cells[0].speed.beyond_noise, found.cells[0].speed.unjudged) == (False, Unjudged.ONE_ROUND)
    assert found.one_round == list(found.cells)
    assert not found.quiet


def test_normalising_cancels_a_slow_machine_exactly(tmp_path):
    # powers of two, so that the quotients are exact
    found = compared(
        tmp_path,
        [*rounds("full_gpu", [4096.0, 4096.0, 2048.0]), *rounds("cache", [1024.0, 2048.0, 512.0])],
        [*later("full_gpu", [1024.0, 1024.0, 512.0]), *later("cache", [256.0, 512.0, 128.0])],
        normalize_by="full_gpu",
    )
    speed = speed_of(found, "cache")
    assert speed.ratio.value == 1.0
    assert speed.before == speed.after
    assert not speed.beyond_noise


def test_normalising_divides_round_by_round(tmp_path):
    slow_rounds = [1000 * drift for drift in DRIFT]
    baseline = {"before": scaled(2.0, slow_rounds), "after": scaled(1.0, slow_rounds)}
    ours = {"before": [0.50, 0.51, 0.49], "after": [0.40, 0.41, 0.39]}
    found = compared(
        tmp_path,
        [
            *rounds("full_gpu", baseline["before"]),
            *rounds("cache", [a * b for a, b in zip(ours["before"], baseline["before"], strict=True)]),
        ],
        [
            *later("full_gpu", baseline["after"]),
            *later("cache", [a * b for a, b in zip(ours["after"], baseline["after"], strict=True)]),
        ],
        normalize_by="full_gpu",
    )
    speed = speed_of(found, "cache")
    ratio, low, high = welch_interval(ours["after"], ours["before"])
    assert speed.ratio.value == pytest.approx(ratio)
    assert (speed.ratio.low, speed.ratio.high) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))
    assert speed.slower


def test_system_to_divide_by_is_shown_as_it_is(tmp_path):
    found = compared(
        tmp_path,
        [*rounds("full_gpu", STEADY), *rounds("cache", STEADY)],
        [*later("full_gpu", scaled(0.5)), *later("cache", scaled(0.5))],
        normalize_by="full_gpu",
    )
    assert speed_of(found, "full_gpu").unjudged is Unjudged.IS_THE_MEASURE
    [(label, speed)] = divisor_speeds(found)
    assert label == "full_gpu x criteo_kaggle"
    assert speed.ratio.value == pytest.approx(0.5)


def test_rounds_without_the_system_to_divide_by_are_left_out(tmp_path):
    found = compared(
        tmp_path,
        [*rounds("full_gpu", STEADY), *rounds("cache", [*STEADY, 7.0])],
        [*later("full_gpu", STEADY), *later("cache", STEADY)],
        normalize_by="full_gpu",
    )
    assert speed_of(found, "cache").rounds == (3, 3)


def test_cell_whose_setting_lacks_the_system_to_divide_by_is_not_compared(tmp_path):
    before = [*rounds("full_gpu", STEADY), *rounds("cache", STEADY, setting={"workload": "avazu"})]
    after = [*later("full_gpu", STEADY), *later("cache", STEADY, setting={"workload": "avazu"})]
    speed = speed_of(compared(tmp_path, before, after, normalize_by="full_gpu"), "cache")
    assert (speed.ratio, speed.unjudged) == (None, Unjudged.NO_MEASURE)


def test_system_with_a_wrong_answer_divides_nothing(tmp_path):
    wrong = record("full_gpu", round=2, status=Status.WRONG_ANSWER)
    with pytest.raises(NoComparison, match="--normalize-by: RUN_A has not measured 'full_gpu'; measured there: cache"):
        compared(
            tmp_path,
            [*rounds("full_gpu", STEADY[:2]), wrong, *rounds("cache", STEADY)],
            [*later("full_gpu", STEADY), *later("cache", STEADY)],
            normalize_by="full_gpu",
        )


def test_records_copied_from_one_run_to_the_other_are_no_second_measurement(tmp_path):
    shared = rounds("cache", STEADY)
    found = compared(tmp_path, shared, [*shared, *later("cache", STEADY, setting={"seed": 2})])
    assert [cell.speed.unjudged for cell in found.cells] == [Unjudged.SAME_RECORDS]
    assert found.cells[0].speed.ratio is None


def test_speeds_of_two_machines_decide_nothing_unless_normalised(tmp_path):
    before = [*rounds("full_gpu", STEADY), *rounds("cache", STEADY)]
    after = [
        *later("full_gpu", scaled(2.0), where=OTHER_MACHINE),
        *later("cache", scaled(1.5), where=OTHER_MACHINE),
    ]
    assert speed_of(compared(tmp_path / "raw", before, after), "cache").unjudged is Unjudged.ANOTHER_MACHINE
    speed = speed_of(compared(tmp_path / "normalised", before, after, normalize_by="full_gpu"), "cache")
    assert speed.unjudged is None
    assert speed.ratio.value == pytest.approx(0.75)


def test_interval_tells_which_losses_it_can_show(tmp_path):
    steady = compared(tmp_path / "steady", rounds("cache", STEADY), later("cache", STEADY)).cells[0].speed
    noisy = compared(tmp_path / "noisy", rounds("cache", STEADY), later("cache", [700.0, 1400.0, 1000.0])).cells[0]
    assert steady.shows(0.10)
    assert not steady.shows(0.001)
    assert not noisy.speed.shows(0.10)


def test_rounds_of_different_code_are_pointed_out(tmp_path):
    before = [*rounds("cache", STEADY[:2]), record("cache", round=2, where=environment(code="0lder"))]
    found = compared(tmp_path, before, later("cache", STEADY))
    assert any("RUN_A has 1 cell whose rounds ran with different code" in warning for warning in found.warnings)
