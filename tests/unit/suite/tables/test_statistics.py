from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from suite.records.record import Record
from suite.records.status import Status
from suite.tables.statistics import (
    Speed,
    Standing,
    log_speeds,
    rank,
    ratio_of,
    relative_speed,
    second_copies,
    speed_of,
    unpaired_ratio,
)
from tests.unit.suite.fabricate import BASELINE, environment, record, rounds, verification

BESIDE = ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
"""Two builds of three turns in which the baseline took a second each."""


def timed(system: str, seconds: tuple[tuple[float, ...], ...], **changes: object) -> Record:
    """A record with these times, beside a baseline of a second a turn."""
    return record(system, timed={"system_s": seconds, "baseline_s": BESIDE, **changes})


def speed(record: Record) -> Speed:
    found = speed_of([record], [timed("full_gpu", BESIDE)])
    assert found is not None
    return found


def places(standings: tuple[Standing, ...]) -> list[tuple[str, str]]:
    return [(f"{one.place}{'=' if one.tied else ''}", one.system) for one in standings]


def test_ratio_is_the_mean_over_builds_of_the_median_over_turns() -> None:
    found = speed(timed("cache", ((0.5, 0.5, 7.0), (2.0, 1.0, 2.0)))).ratio
    assert found is not None
    assert found.value == pytest.approx(1.0)  # twice as fast in one build, half as fast in the other
    assert log_speeds([timed("cache", ((0.5, 0.5, 7.0), (2.0, 1.0, 2.0)), contest="c")]) == {
        ("c", 0): pytest.approx(math.log(2)),
        ("c", 1): pytest.approx(-math.log(2)),
    }


def test_machine_that_slows_down_in_a_turn_cancels_out() -> None:
    drift = (1.0, 3.0, 0.5)
    beside = tuple(tuple(2 * factor for factor in drift) for _ in range(2))
    own = tuple(tuple(2.5 * factor for factor in drift) for _ in range(2))
    assert list(log_speeds([timed("cache", own, baseline_s=beside)]).values()) == [pytest.approx(math.log(0.8))] * 2


def test_printed_speeds_agree_with_the_ratio_and_stalls_show_in_the_total() -> None:
    found, steps = speed(timed("cache", ((0.8, 0.8, 9.0), (0.8, 0.8, 0.8)), steps=20)), 20
    assert found.ratio is not None
    assert found.steps_per_s / speed(timed("full_gpu", BESIDE)).steps_per_s == pytest.approx(found.ratio.value)
    assert found.steps_per_s == pytest.approx(1.25 * steps)
    assert found.total_steps_per_s == pytest.approx(6 * steps / 13.0)


def test_baselines_second_copy_is_told_beside_the_first() -> None:
    baseline = timed("full_gpu", BESIDE, baseline_s=((1.25, 1.25, 1.25), (1.25, 1.0, 1.25)))
    copies = second_copies([baseline])
    found = speed_of(copies, [baseline])
    assert found is not None
    assert found.ratio is not None
    assert copies[0].cell.system == "full_gpu (again)"
    assert found.ratio.value == pytest.approx(0.8)
    assert found.steps_per_s == pytest.approx(20 * 0.8)
    assert second_copies([record("full_gpu", baseline=None)]) == []


def test_baselines_times_beside_a_system_are_enough_unless_it_was_wrong() -> None:
    found, wrong = (speed_of([record("a", samples_per_s=BASELINE / 4)], baseline) for baseline in ((), None))
    assert found is not None
    assert wrong is not None
    assert found.ratio is not None
    assert (found.ratio.value, found.steps_per_s) == (pytest.approx(0.25), pytest.approx(25))
    assert (wrong.ratio, wrong.steps_per_s) == (None, pytest.approx(25))


def test_system_without_a_baseline_beside_it_has_a_speed_and_no_ratio() -> None:
    alone = record("huge", samples_per_s=BASELINE / 4, baseline=None)
    found = speed_of([alone], [record("full_gpu")])
    assert found is not None
    assert (found.ratio, found.steps_per_s) == (None, pytest.approx(25.0))
    assert relative_speed([alone], [record("full_gpu")]) is None
    assert speed_of([record("fbgemm_uvm", computes_as="full_gpu")], [record("full_gpu")]) is None


def test_interval_is_students_t_on_the_logarithms() -> None:
    found = ratio_of([1.0, 2.0, 3.0])
    assert found.low is not None
    assert found.high is not None
    half = 4.302653 / math.sqrt(3)  # standard deviation of 1, 2, 3 is 1
    assert math.log(found.value) == pytest.approx(2)
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_single_build_has_no_interval_and_decides_nothing() -> None:
    found = ratio_of([math.log(100)])
    assert (found.low, found.high, found.spans_one) == (None, None, True)


def test_builds_that_do_not_differ_leave_no_doubt() -> None:
    for found in (ratio_of([math.log(0.8)] * 3), unpaired_ratio([math.log(0.8)] * 3, [0.0, 0.0])):
        assert found.value == found.low == found.high == pytest.approx(0.8)


def test_systems_of_a_contest_are_compared_build_by_build() -> None:
    ours = timed("a", ((0.5,) * 3, (2.0,) * 3), contest="c")
    theirs = timed("b", ((1.0,) * 3, (4.0,) * 3), contest="c")
    found = relative_speed([ours], [theirs])
    assert found is not None
    assert (found.low, found.value, found.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


@pytest.mark.parametrize(
    ("ours", "theirs", "degrees"),
    [([0, 1, 2], [0, 2, 4], 50 / 17), ([0, 1], [0, 1], 2), ([0, 1, 2, 3], [5, 5], 3)],
)
def test_systems_that_never_met_are_compared_by_their_ratios_with_welchs_interval(
    ours: list[int], theirs: list[int], degrees: float
) -> None:
    sides = [
        record(
            name,
            timed={
                "contest": name,
                "system_s": tuple((math.exp(-log),) for log in logs),
                "baseline_s": tuple((1.0,) for _ in logs),
            },
        )
        for name, logs in (("a", ours), ("b", theirs))
    ]
    found = relative_speed([sides[0]], [sides[1]])
    error = math.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(theirs, ddof=1) / len(theirs))
    half = float(stats.t.ppf(0.975, degrees)) * error
    middle = statistics.fmean(ours) - statistics.fmean(theirs)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert math.log(found.value) == pytest.approx(middle)
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(middle - half), pytest.approx(middle + half))


def test_clear_differences_rank_one_after_another() -> None:
    records = [*rounds("slow", [100, 101, 102]), *rounds("fast", [200, 202, 204]), *rounds("middle", [150, 152, 153])]
    assert places(rank(records)) == [("1", "fast"), ("2", "middle"), ("3", "slow")]


def test_systems_too_close_to_call_share_a_place_and_the_next_is_not_moved_up() -> None:
    records = [*rounds("a", [100, 103, 99]), *rounds("b", [101, 99, 101]), *rounds("slow", [50, 51, 50])]
    assert places(rank(records)) == [("1=", "a"), ("1=", "b"), ("3", "slow")]


def test_a_place_is_shared_with_its_first_not_down_a_chain_of_neighbours() -> None:
    blocks = {"a": (0.00, 0.00, 0.00), "b": (-0.01, -0.05, 0.01), "c": (-0.06, -0.07, -0.05)}
    records = [
        record(name, timed={"system_s": [(math.exp(-log),) for log in logs], "baseline_s": [(1.0,)] * 3})
        for name, logs in blocks.items()
    ]
    assert places(rank(records)) == [("1=", "a"), ("1=", "b"), ("3", "c")]
    assert places(rank(records[1:])) == [("1=", "b"), ("1=", "c")]


def test_one_build_ranks_nobody_above_another() -> None:
    once = {"setting": {"builds": 1}}
    records = [record("a", samples_per_s=900, **once), record("b", samples_per_s=100, **once)]
    assert places(rank(records)) == [("1=", "a"), ("1=", "b")]


@pytest.mark.parametrize(
    "outsider",
    [
        rounds("x", [900, 900], checked=verification(passed=False)),
        rounds("x", [900, 900], offloads=False, placement="host-resident"),
        rounds("x", [900, 900], status=Status.TIMEOUT),
        rounds("x", [900, 900], computes_as="full_gpu"),
        [record("x", samples_per_s=900), record("x", round=1, status=Status.CRASHED, phase="turns")],
    ],
    ids=["failed verification", "does not offload", "timed out", "not timed", "one round crashed"],
)
def test_only_verified_timed_offloading_systems_are_ranked(outsider: list[Record]) -> None:
    records = [*rounds("a", [100, 101]), *rounds("b", [50, 51]), *outsider]
    assert [one.system for one in rank(records)] == ["a", "b"]


def test_full_gpu_baseline_is_ranked_on_cuda() -> None:
    records = [*rounds("full_gpu", [BASELINE, BASELINE], offloads=False), *rounds("a", [100, 101])]
    assert [one.system for one in rank(records)] == ["full_gpu", "a"]


def test_nothing_host_resident_is_ranked_on_a_cpu() -> None:
    setting = {"device": "cpu"}
    records = [
        *rounds("full_gpu", [900, 901], setting=setting, offloads=False),
        *rounds("torchrec_uvm", [800, 801], setting=setting, offloads=False),
        *rounds("cache[tier=disk]", [100, 101], setting=setting),
    ]
    assert rank(records) == ()
    records += rounds("cache[policy=lru,tier=disk]", [50, 51], setting=setting)
    assert [one.system for one in rank(records)] == ["cache[tier=disk]", "cache[policy=lru,tier=disk]"]


@pytest.mark.parametrize(
    "other",
    [
        record("b", setting={"data": "real"}),
        record("b", setting={"lr": 0.5}),
        record("b", where=environment(machine="another")),
        record("b", where=environment(threads=1)),
    ],
    ids=["data", "setting", "machine", "threads"],
)
def test_records_that_do_not_compare_cannot_be_ranked(other: object) -> None:
    with pytest.raises(ValueError, match="group them first"):
        rank([record("a"), other])


def test_no_records_have_no_ranking() -> None:
    assert rank([]) == ()
