from __future__ import annotations

import pytest

from suite.records.groups import group_records
from suite.records.record import Record, Status
from suite.report.leaderboard import Leaderboard, leaderboards, standings
from suite.tables.statistics import met, relative_speed
from tests.unit.suite.fabricate import (
    BASELINE,
    record,
    rounds,
    verification,
)
from tests.unit.suite.report.report_scenes import MIB, baseline, sized, unverified, with_memory

FAST, SLOW = [0.9, 0.9, 0.9], [0.4, 0.4, 0.4]


def leaderboards_of(records: list[Record]) -> tuple[Leaderboard, ...]:
    return leaderboards(group_records(records))


def only(records: list[Record]) -> Leaderboard:
    (found,) = leaderboards_of(records)
    return found


def order(leaderboard: Leaderboard, budget: int) -> list[tuple[int, str]]:
    return [(line["place"], line["system"]) for line in standings(leaderboard, budget)]


@pytest.mark.parametrize(
    ("sizes", "budgets"),
    [((3, 5, 17), (4, 8, 16, 32)), ((4, 8), (4, 8))],
)
def test_budgets_are_powers_of_two_from_the_first_that_lets_one_in_to_the_first_that_lets_all_in(sizes, budgets):
    found = only([run for size in sizes for run in sized(f"s{size}", FAST, size * MIB)])
    assert found.budgets == tuple(budget * MIB for budget in budgets)
    assert standings(found, found.budgets[0])
    assert len(standings(found, found.budgets[-1])) == len(sizes)
    assert standings(found, found.budgets[0] // 2) == []


def test_system_enters_a_budget_with_the_fastest_of_its_cells_that_fits():
    records = [
        *sized("a", [0.5] * 3, 3 * MIB, setting={"cache_ratio": 0.01}),
        *sized("a", [0.7] * 3, 6 * MIB, setting={"cache_ratio": 0.05}),
        *sized("a", [0.6] * 3, 12 * MIB, setting={"cache_ratio": 0.10}),
    ]
    found = only(records)
    ratios = {budget: [line["cache_ratio"] for line in standings(found, budget)] for budget in found.budgets}
    assert ratios == {4 * MIB: [0.01], 8 * MIB: [0.05], 16 * MIB: [0.05]}


def test_cells_of_two_sizes_are_compared_through_the_baseline_whatever_the_machine_did():
    """Small caches were measured while the machine was half as fast."""
    small, large = {"cache_ratio": 0.01}, {"cache_ratio": 0.05}
    slow = BASELINE / 2
    records = [
        *with_memory(rounds("full_gpu", [slow] * 3, setting=small, baseline=slow, offloads=False), anatomy_bytes={}),
        *with_memory(
            rounds("ours", [0.8 * slow] * 3, setting=small, baseline=slow), anatomy_bytes={"device/rows": MIB}
        ),
        *baseline([1, 1, 1], setting=large),
        *sized("theirs", [0.6] * 3, MIB, setting=large),
    ]
    first, second = (place for place in standings(only(records), MIB) if place["system"] != "full_gpu")
    assert [place["system"] for place in (first, second)] == ["ours", "theirs"]
    assert not met(first["row"].records, second["row"].records)
    ratio = relative_speed(second["row"].records, first["row"].records)
    assert ratio is not None
    assert ratio.value == pytest.approx(0.6 / 0.8)
    assert not ratio.spans_one


def test_difference_within_the_noise_is_none_however_narrow_its_interval():
    records = [*sized("a", [0.90] * 3, MIB, noise=0), *sized("b", [0.88] * 3, MIB, noise=0)]
    assert [place["tied"] for place in standings(only(records), MIB)] == [False, False]
    noisy = baseline([1.03] * 3, noise=0)
    found = standings(only([*records, *noisy]), MIB)
    assert [place["tied"] for place in found] == [True, True]


@pytest.mark.parametrize(
    "bad",
    [
        [
            *sized("bad", SLOW[:2], MIB),
            record("bad", round=2, status=Status.WRONG_ANSWER, checked=verification(passed=False)),
        ],
        [*sized("bad", SLOW, MIB)[:2], *unverified(sized("bad", SLOW, MIB)[2:])],
        [*sized("bad", SLOW[:2], MIB), record("bad", round=2, status=Status.TIMEOUT, reason="slow")],
        sized("bad", SLOW, MIB, same_kernel_as="full_gpu"),
    ],
    ids=["wrong once", "unverified once", "timeout once", "not timed"],
)
def test_who_is_not_ranked(bad):
    found = only([*sized("good", FAST, MIB), *bad])
    assert [entry.system for entry in found.rows] == ["good"]


@pytest.mark.parametrize(
    "outsider",
    [
        record("x", checked=verification(passed=False)),
        record("x", offloads=False, placement="host-resident"),
        record("x", status=Status.TIMEOUT),
        record("x", same_kernel_as="full_gpu"),
        record("x", status=Status.CRASHED, phase="turns"),
        record("full_gpu", setting={"device": "cpu"}, offloads=False),
    ],
    ids=["failed verification", "does not offload", "timed out", "not timed", "crashed", "baseline on a CPU"],
)
def test_only_verified_timed_offloading_systems_and_the_baseline_on_cuda_take_part(outsider: Record) -> None:
    for one, expected in ((outsider, []), (record("x"), ["x"]), (record("full_gpu", offloads=False), ["full_gpu"])):
        assert [row.system for board in leaderboards_of([one]) for row in board.rows] == expected
