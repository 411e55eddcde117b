import math
import statistics
from typing import Any

import numpy as np
import pytest
from scipy import stats

from suite.records.record import Record
from suite.tables.statistics import (
    log_speeds,
    mean_of,
    ratio_of,
    relative_speed,
    repeat_speed,
    samples_of,
    slowed_alone,
    speed_of,
)
from tests.unit.suite.fabricate import BASELINE, record

BESIDE = ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
"""Two builds of three turns in which the baseline took a second each."""


def timed(system: str, seconds: tuple[tuple[float, ...], ...], **changes: object) -> Record:
    """A record with these times, beside a baseline of a second a turn."""
    return record(system, timed={"system_s": seconds, "baseline_s": BESIDE, **changes})


def speed(record: Record) -> dict[str, Any]:
    return speed_of([record], [timed("full_gpu", BESIDE)])


def test_ratio_is_the_mean_over_builds_of_the_median_over_turns() -> None:
    found = timed("cache", ((0.5, 0.5, 7.0), (2.0, 1.0, 2.0)), contest="c")
    assert speed(found)["ratio"].value == pytest.approx(1.0)  # twice as fast in one build, half as fast in the other
    assert log_speeds([found]) == {
        ("c", 0): pytest.approx(math.log(2)),
        ("c", 1): pytest.approx(-math.log(2)),
    }


def test_printed_speed_is_that_of_the_systems_own_turns_and_stalls_show_in_the_total() -> None:
    times, steps = ((0.8, 0.8, 9.0), (0.8, 0.8, 0.8)), 20
    found = speed(timed("cache", times, steps=steps))
    assert found["steps_per_s"] == pytest.approx(steps / 0.8)
    slow = speed(timed("cache", times, baseline_s=((2.0,) * 3,) * 2, steps=steps))
    assert slow["ratio"].value == pytest.approx(2.5)  # beside a baseline that was slower: the pace is as it was
    assert slow["steps_per_s"] == found["steps_per_s"]
    assert found["total_steps_per_s"] == pytest.approx(6 * steps / 13.0)


def test_baselines_repeat_has_times_of_its_own() -> None:
    baseline = timed("full_gpu", BESIDE, baseline_s=((1.25, 1.25, 1.25), (1.25, 1.0, 1.25)))
    found = repeat_speed([baseline])
    assert found["ratio"].value == pytest.approx(0.8)
    assert found["steps_per_s"] == pytest.approx(20 / 1.25)
    assert repeat_speed([record("full_gpu", baseline=None)]) == {}


def test_baselines_times_beside_a_system_are_enough_unless_it_was_wrong_or_there_are_none() -> None:
    found, wrong = (speed_of([record("a", samples_per_s=BASELINE / 4)], baseline) for baseline in ((), None))
    assert (found["ratio"].value, found["steps_per_s"]) == (pytest.approx(0.25), pytest.approx(25))
    assert (wrong["ratio"], wrong["steps_per_s"]) == (None, pytest.approx(25))
    alone = record("huge", samples_per_s=BASELINE / 4, baseline=None)
    found = speed_of([alone], [record("full_gpu")])
    assert (found["ratio"], found["steps_per_s"]) == (None, pytest.approx(25.0))
    assert relative_speed([alone], [record("full_gpu")]) is None
    assert speed_of([record("fbgemm_uvm", same_kernel_as="full_gpu")], [record("full_gpu")]) == {}


def test_interval_is_students_t_on_the_logarithms_and_a_single_build_has_none() -> None:
    found = ratio_of([1.0, 2.0, 3.0])
    half = 4.302653 / math.sqrt(3)  # standard deviation of 1, 2, 3 is 1
    ends = [math.log(end) for end in (found.value, found.low or 0, found.high or 0)]
    assert ends == pytest.approx([2, 2 - half, 2 + half])
    single = ratio_of([math.log(100)])
    assert (single.low, single.high, single.spans_one) == (None, None, True)


@pytest.mark.parametrize("value", [0.02, 0.1, 0.7, -0.3])
def test_builds_that_do_not_differ_leave_no_doubt(value: float) -> None:
    for found in (ratio_of([value] * 3), ratio_of([value] * 3, [0.0, 0.0])):
        assert found.value == found.low == found.high == pytest.approx(math.exp(value))
    mean = mean_of([value] * 3)
    assert (mean.low or -1) <= mean.value <= (mean.high or -1)


def test_systems_of_a_contest_are_compared_build_by_build() -> None:
    ours = timed("a", ((0.5,) * 3, (2.0,) * 3), contest="c")
    theirs = timed("b", ((1.0,) * 3, (4.0,) * 3), contest="c")
    found = relative_speed([ours], [theirs])
    assert found is not None
    assert (found.low, found.value, found.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def raced(name: str, logs: list[float], **more: object) -> Record:
    """A record with these log ratios by build, in a contest of its own unless `more` names one."""
    builds = {"system_s": tuple((math.exp(-log),) for log in logs), "baseline_s": tuple((1.0,) for _ in logs)}
    return record(name, timed={"contest": name, **builds, **more})


def test_systems_that_never_met_are_compared_by_their_ratios_with_welchs_interval() -> None:
    found = relative_speed([raced("a", [0, 1, 2])], [raced("b", [0, 2, 4])])
    assert found is not None
    ends = [math.log(end) for end in (found.value, found.low or 0, found.high or 0)]
    half = float(stats.t.ppf(0.975, 50 / 17)) * math.sqrt(1 / 3 + 4 / 3)
    assert ends == pytest.approx([-1, -1 - half, -1 + half])


def test_of_three_runs_the_interval_is_over_their_means_and_of_fewer_over_builds() -> None:
    """Builds of a process are alike: over them alone an interval would not cover a repeat of the run."""
    means = [-math.log(middle) for middle in (1.0, 1.02, 1.04)]
    runs = [raced("a", [mean, mean], contest=f"run {number}") for number, mean in enumerate(means)]
    assert samples_of(log_speeds(runs)) == pytest.approx(means)
    assert speed_of(runs, ())["ratio"] == ratio_of(samples_of(log_speeds(runs)))
    assert samples_of(log_speeds(runs[:2])) == pytest.approx([means[0]] * 2 + [means[1]] * 2)


def test_embedding_step_has_a_ratio_of_its_own_also_for_the_baselines_repeat() -> None:
    alone = {"embedding_s": ((2.0,) * 3,) * 2, "baseline_embedding_s": ((1.0,) * 3,) * 2}
    assert speed(timed("cache", BESIDE, **alone))["embedding_ratio"].value == pytest.approx(0.5)
    baseline = timed("full_gpu", BESIDE, **alone)
    assert speed(baseline)["embedding_ratio"].value == 1
    assert repeat_speed([baseline])["embedding_ratio"].value == pytest.approx(2)
    assert speed(timed("cache", BESIDE))["embedding_ratio"] is None


def test_slow_spells_of_the_machine_do_not_make_a_system_slower_alone_than_in_turns() -> None:
    random = np.random.default_rng(0)

    def spells(runs: int) -> list[list[float]]:
        return (1 + 0.3 * (random.random((3, runs)) < 0.15)).tolist()

    for behind in ((1, 5, 8), None):
        found = [statistics.median(slowed_alone(spells(10), spells(3), behind)) for _ in range(300)]
        assert abs(statistics.fmean(found)) < 0.005


def test_run_alone_is_compared_with_the_turn_before_it_or_where_that_is_not_known_with_the_usual_one() -> None:
    turns, alone = [[1.0, 1.0, 2.0], [3.0, 3.0, 6.0]], [[1.1, 2.2], [3.3, 6.6]]
    assert slowed_alone(turns, alone, (1, 2)) == pytest.approx([math.log(1.1)] * 4)
    assert slowed_alone(turns, alone, None) == pytest.approx([math.log(1.1), math.log(2.2)] * 2)


def test_pace_alone_of_a_row_is_beside_the_turns_that_its_record_names() -> None:
    turns = {"system_s": ((1.0, 2.0, 1.0, 1.0),) * 2, "baseline_s": ((1.0,) * 4,) * 2, "alone_s": ((2.0,),) * 2}
    known, unknown = (record("a", timed={"contest": "one", **turns, "alone_behind": at}) for at in ((1,), None))
    paces = [speed_of([one], ()) for one in (known, unknown)]
    assert paces[0]["alone_steps_per_s"] == pytest.approx(paces[0]["steps_per_s"])
    assert paces[1]["alone_steps_per_s"] == pytest.approx(paces[1]["steps_per_s"] / 2)
