from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from suite.records.status import Status
from suite.tables.statistics import Standing, paired_ratio, rank, unpaired_ratio
from tests.unit.suite.fabricate import environment, record, rounds, verification


def rounds_of(*speeds: float) -> dict[int, float]:
    return dict(enumerate(map(float, speeds)))


def places(standings: tuple[Standing, ...]) -> list[tuple[str, str]]:
    return [(f"{one.place}{'=' if one.tied else ''}", one.system) for one in standings]


def test_ratio_is_the_geometric_mean_of_the_rounds() -> None:
    ratio = paired_ratio({0: 100.0, 1: 400.0}, {0: 100.0, 1: 100.0})
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0)
    assert ratio.rounds == 2


def test_interval_is_students_t_on_the_logarithms() -> None:
    ratio = paired_ratio({0: math.e**1, 1: math.e**2, 2: math.e**3}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    half = 4.302653 / math.sqrt(3)  # standard deviation of 1, 2, 3 is 1
    assert math.log(ratio.low) == pytest.approx(2 - half, abs=1e-4)
    assert math.log(ratio.high) == pytest.approx(2 + half, abs=1e-4)


def test_only_rounds_that_both_have_are_compared() -> None:
    ratio = paired_ratio({0: 10.0, 1: 20.0, 2: 1000.0}, {0: 10.0, 1: 20.0, 7: 1.0})
    assert ratio is not None
    assert (ratio.value, ratio.rounds) == (pytest.approx(1.0), 2)


def test_slow_round_of_the_machine_cancels_out() -> None:
    ratio = paired_ratio({0: 200.0, 1: 20.0, 2: 100.0}, {0: 100.0, 1: 10.0, 2: 50.0})
    assert ratio is not None
    assert ratio.low == pytest.approx(2.0)
    assert not ratio.spans_one


def test_single_round_has_no_interval_and_decides_nothing() -> None:
    ratio = paired_ratio({0: 1000.0}, {0: 10.0})
    assert ratio is not None
    assert (ratio.low, ratio.high, ratio.spans_one) == (None, None, True)


def test_interval_that_contains_one_is_too_close_to_call() -> None:
    ratio = paired_ratio({0: 110.0, 1: 95.0, 2: 102.0}, {0: 100.0, 1: 100.0, 2: 100.0})
    assert ratio is not None
    assert ratio.spans_one


def test_systems_without_a_common_round_are_not_compared() -> None:
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
    assert paired_ratio({}, {}) is None


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        paired_ratio({0: speed}, {0: 1.0})


@pytest.mark.parametrize(
    ("ours", "theirs", "degrees"),
    [
        ([0, 1, 2], [0, 2, 4], 50 / 17),
        ([0, 1], [0, 1], 2),
        ([0, 1, 2, 3], [5, 5], 3),
    ],
)
def test_unpaired_interval_is_welchs_on_the_logarithms(ours: list[int], theirs: list[int], degrees: float) -> None:
    found = unpaired_ratio(rounds_of(*np.exp(ours)), rounds_of(*np.exp(theirs)))
    error = math.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(theirs, ddof=1) / len(theirs))
    half = float(stats.t.ppf(0.975, degrees)) * error
    middle = statistics.fmean(ours) - statistics.fmean(theirs)
    assert found.low is not None
    assert found.high is not None
    assert math.log(found.value) == pytest.approx(middle)
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(middle - half), pytest.approx(middle + half))
    assert found.rounds == min(len(ours), len(theirs))


def test_exchanged_sides_give_the_reciprocal_and_round_numbers_do_not_matter() -> None:
    ours, theirs = rounds_of(90.0, 92.0, 97.0), {7: 100.0, 3: 101.0}
    one, other = unpaired_ratio(ours, theirs), unpaired_ratio(theirs, ours)
    assert (one.value, one.low, one.high) == tuple(
        pytest.approx(1 / value) for value in (other.value, other.high, other.low)
    )


@pytest.mark.parametrize(("ours", "theirs"), [([90.0], [100.0, 101.0]), ([90.0, 91.0], [100.0]), ([90.0], [100.0])])
def test_one_round_on_either_side_has_no_interval(ours: list[float], theirs: list[float]) -> None:
    found = unpaired_ratio(rounds_of(*ours), rounds_of(*theirs))
    assert (found.low, found.high, found.rounds, found.spans_one) == (None, None, 1, True)


def test_rounds_that_do_not_differ_leave_no_doubt() -> None:
    found = unpaired_ratio(rounds_of(80.0, 80.0), rounds_of(100.0, 100.0))
    assert found.value == found.low == found.high == pytest.approx(0.8)


def test_side_without_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="no round"):
        unpaired_ratio({}, {0: 1.0})
    with pytest.raises(ValueError, match="must be positive"):
        unpaired_ratio({0: 1.0}, {0: 0.0})


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_an_interval_misses_the_truth_as_often_as_it_promises_and_finds_a_loss(loss: float) -> None:
    draws = np.random.default_rng(20261122)
    trials, missed, slower = 400, 0, 0
    for _ in range(trials):
        ours, theirs = (speed * np.exp(draws.normal(0, 0.01, 5)) for speed in (1000.0 * (1 - loss), 1000.0))
        ratio = unpaired_ratio(rounds_of(*ours), rounds_of(*theirs))
        assert ratio.low is not None
        assert ratio.high is not None
        missed += not ratio.low <= 1 - loss <= ratio.high
        slower += ratio.high < 1
    assert 0.02 < missed / trials < 0.08  # 5 % by construction; none at all would be no interval
    assert slower / trials > 0.99 if loss else slower / trials < 0.05


def test_clear_differences_rank_one_after_another() -> None:
    records = [*rounds("slow", [100, 101, 102]), *rounds("fast", [200, 202, 204]), *rounds("middle", [150, 152, 153])]
    assert places(rank(records)) == [("1", "fast"), ("2", "middle"), ("3", "slow")]


def test_systems_too_close_to_call_share_a_place_and_the_next_is_not_moved_up() -> None:
    records = [*rounds("a", [100, 103, 99]), *rounds("b", [101, 99, 101]), *rounds("slow", [50, 51, 50])]
    assert places(rank(records)) == [("1=", "a"), ("1=", "b"), ("3", "slow")]


def test_a_place_is_shared_with_its_first_not_down_a_chain_of_neighbours() -> None:
    records = [*rounds("a", [100, 101, 102]), *rounds("b", [98, 101, 98.5]), *rounds("c", [97, 98, 99])]
    assert places(rank(records)) == [("1=", "a"), ("1=", "b"), ("3", "c")]
    assert places(rank(records[3:])) == [("1=", "b"), ("1=", "c")]


def test_one_round_ranks_nobody_above_another() -> None:
    assert places(rank([record("a", samples_per_s=900), record("b", samples_per_s=100)])) == [("1=", "a"), ("1=", "b")]


@pytest.mark.parametrize(
    "outsider",
    [
        rounds("x", [900, 900], checked=verification(passed=False)),
        rounds("x", [900, 900], offloads=False, placement="host-resident"),
        rounds("x", [900, 900], status=Status.TIMEOUT),
        [record("x", samples_per_s=900), record("x", round=1, status=Status.CRASHED)],
    ],
    ids=["failed verification", "does not offload", "timed out", "one round crashed"],
)
def test_only_verified_offloading_systems_are_ranked(outsider: list) -> None:
    records = [*rounds("a", [100, 101]), *rounds("b", [50, 51]), *outsider]
    assert [one.system for one in rank(records)] == ["a", "b"]


def test_full_gpu_baseline_is_ranked_on_cuda() -> None:
    records = [*rounds("full_gpu", [900, 901], offloads=False), *rounds("a", [100, 101])]
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
