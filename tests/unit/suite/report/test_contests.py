from __future__ import annotations

import statistics

import pytest

from suite.records.groups import group_records
from suite.records.record import Record
from suite.records.status import Status
from suite.report.contests import Basis, Contest, contests, device_bytes, standings
from suite.tables.statistics import paired_ratio, unpaired_ratio
from tests.unit.suite.fabricate import (
    cpu_run,
    environment,
    gpu_run,
    measurement,
    record,
    rounds,
    shuffled,
    verification,
)
from tests.unit.suite.report.report_scenes import MIB, disk_run, sized, unverified, with_memory

FAST, SLOW = [900_000.0, 910_000.0, 905_000.0], [400_000.0, 404_000.0, 402_000.0]


def contests_of(records: list[Record]) -> tuple[Contest, ...]:
    return contests(group_records(records))


def only_contest(records: list[Record]) -> Contest:
    (contest,) = contests_of(records)
    return contest


def order(contest: Contest, budget: int) -> list[tuple[int, str]]:
    return [(place.place, place.contender.system) for place in standings(contest, budget)]


@pytest.mark.parametrize(
    ("sizes", "budgets"),
    [((3, 5, 17), (4, 8, 16, 32)), ((4,), (4,)), ((4, 8), (4, 8)), ((1000,), (1024,))],
)
def test_budgets_are_powers_of_two_from_the_first_that_lets_one_in_to_the_first_that_lets_all_in(sizes, budgets):
    found = only_contest([run for size in sizes for run in sized(f"s{size}", FAST, size * MIB)])
    assert found.budgets == tuple(budget * MIB for budget in budgets)
    assert standings(found, found.budgets[0])
    assert len(standings(found, found.budgets[-1])) == len(sizes)


def test_one_byte_above_a_power_of_two_is_not_let_in_below_it():
    contest = only_contest(sized("a", FAST, 4 * MIB + 1))
    assert contest.budgets == (8 * MIB,)
    assert standings(contest, 4 * MIB) == ()


def test_system_enters_a_budget_with_the_fastest_of_its_cells_that_fits():
    records = [
        *sized("a", [500_000.0] * 3, 3 * MIB, setting={"cache_ratio": 0.01}),
        *sized("a", [700_000.0] * 3, 6 * MIB, setting={"cache_ratio": 0.05}),
        *sized("a", [600_000.0] * 3, 12 * MIB, setting={"cache_ratio": 0.10}),
    ]
    contest = only_contest(records)
    ratios = {
        budget: [place.contender.group.cell.cache_ratio for place in standings(contest, budget)]
        for budget in contest.budgets
    }
    assert ratios == {4 * MIB: [0.01], 8 * MIB: [0.05], 16 * MIB: [0.05]}


def test_budget_and_ratio_cells_meet_in_one_contest():
    budget = {"cache_ratio": None, "device_budget_bytes": 5 * MIB}
    contest = only_contest([*sized("a", FAST, 5 * MIB, setting=budget), *sized("b", SLOW, 5 * MIB)])
    assert order(contest, 8 * MIB) == [(1, "a"), (2, "b")]


def test_cells_of_one_group_are_compared_round_by_round():
    ours, theirs = [100.0, 400.0, 900.0], [200.0, 800.0, 1800.0]
    contest = only_contest([*sized("slow", ours, MIB), *sized("fast", theirs, MIB)])
    first, second = standings(contest, MIB)
    assert (first.contender.system, first.to_first) == ("fast", None)
    assert second.to_first == paired_ratio(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert not second.tied  # the rounds differ ninefold; within a round it is always half as fast


def test_cells_of_two_groups_are_compared_without_pairs():
    ours, theirs = [100.0, 400.0, 900.0], [200.0, 800.0, 1800.0]
    contest = only_contest(
        [*sized("slow", ours, MIB), *sized("fast", theirs, MIB, setting={"cache_ratio": 0.02})],
    )
    _, second = standings(contest, MIB)
    assert second.to_first == unpaired_ratio(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert second.tied


def test_speed_is_the_geometric_mean_over_rounds():
    (place,) = standings(only_contest(sized("a", [100.0, 400.0], MIB)), MIB)
    assert place.contender.samples_per_s == pytest.approx(statistics.geometric_mean([100.0, 400.0]))


def test_too_close_to_call_shares_a_place_and_the_next_one_is_counted_on():
    records = [
        *sized("a", [900.0, 910.0, 905.0], MIB),
        *sized("b", [905.0, 900.0, 907.0], MIB),
        *sized("c", [400.0, 404.0, 402.0], MIB),
    ]
    places = standings(only_contest(records), MIB)
    assert [(place.place, place.tied) for place in places] == [(1, True), (1, True), (3, False)]


def test_a_place_is_shared_with_its_first_not_down_a_chain_of_neighbours():
    by_system = {"a": [100.0, 101.0, 102.0], "b": [98.0, 101.0, 98.5], "c": [97.0, 98.0, 99.0]}
    records = [one for system, speeds in by_system.items() for one in sized(system, speeds, MIB)]
    places = standings(only_contest(records), MIB)
    assert [(place.contender.system, place.place, place.tied) for place in places] == [
        ("a", 1, True), ("b", 1, True), ("c", 3, False),
    ]  # fmt: skip


def test_single_round_is_too_close_to_call_however_far_apart():
    places = standings(only_contest([*sized("a", [1000.0], MIB), *sized("b", [10.0], MIB)]), MIB)
    assert [place.tied for place in places] == [True, True]
    assert places[1].to_first is not None
    assert places[1].to_first.low is None


@pytest.mark.parametrize(
    "bad",
    [
        [
            *sized("bad", SLOW[:2], MIB),
            record("bad", round=2, status=Status.WRONG_ANSWER, checked=verification(passed=False)),
        ],
        sized("bad", SLOW, MIB, checked=verification(difference=1.0, passed=False)),
        unverified(sized("bad", SLOW, MIB)),
        [*sized("bad", SLOW, MIB)[:2], *unverified(sized("bad", SLOW, MIB)[2:])],
        [*sized("bad", SLOW[:2], MIB), record("bad", round=2, status=Status.TIMEOUT, reason="slow")],
        sized("bad", SLOW, MIB, offloads=False, placement="device"),
    ],
    ids=["wrong once", "failed verification", "unverified", "unverified once", "timeout once", "does not offload"],
)
def test_who_is_not_ranked(bad):
    contest = only_contest([*sized("good", FAST, MIB), *bad])
    assert [entry.system for entry in contest.contenders] == ["good"]


def test_baseline_takes_part_on_a_gpu_and_not_on_a_cpu():
    gpu = only_contest(gpu_run())
    assert {entry.system for entry in gpu.contenders} == {
        "full_gpu",
        "cache[policy=lfu]",
        "fbgemm_uvm_caching[policy=lru]",
        "torchrec_uvm",
    }
    on_cpu = {"device": "cpu"}
    assert contests_of(rounds("full_gpu", FAST, setting=on_cpu, offloads=False)) == ()


def test_on_a_cpu_only_what_offloads_is_in_and_its_device_bytes_are_its_own_account():
    (entry,) = only_contest(cpu_run()).contenders
    assert entry.system == "cache[tier=disk]"
    assert (entry.device_bytes, entry.basis) == (172_000_000 + 1_350_000, Basis.ANATOMY)


def test_ram_over_disk_at_four_budgets():
    contest = only_contest(disk_run())
    assert contest.budgets == (2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
    cells = [standings(contest, budget)[0].contender.group.cell.device_budget_bytes for budget in contest.budgets]
    assert cells == list(contest.budgets)


def test_device_bytes_are_the_largest_of_any_round():
    runs = [
        *with_memory(rounds("a", [900.0]), device_used_bytes=5 * MIB),
        *with_memory([record("a", round=1, samples_per_s=900.0)], device_used_bytes=7 * MIB),
    ]
    (entry,) = only_contest(runs).contenders
    assert (entry.device_bytes, entry.basis) == (7 * MIB, Basis.DRIVER)


def test_where_device_bytes_come_from():
    full = measurement()
    no_driver = full.model_copy(update={"memory": full.memory.model_copy(update={"device_used_bytes": None})})
    on_host = full.model_copy(update={"memory": full.memory.model_copy(update={"anatomy_bytes": {"host/rows": 9}})})
    assert device_bytes(full, on_cpu=False) == (3_000_000_000, Basis.DRIVER)
    assert device_bytes(no_driver, on_cpu=False) == (2_000_000_000, Basis.TORCH)
    assert device_bytes(full, on_cpu=True) == (173_350_000, Basis.ANATOMY)
    assert device_bytes(on_host, on_cpu=True) is None


@pytest.mark.parametrize(
    "other",
    [
        {"where": environment(machine="another")},
        {"where": environment(threads=2)},
        {"setting": {"data": "real"}},
        {"setting": {"optimizer": "sgd"}},
        {"setting": {"batch_size": 8192}},
        {"setting": {"workload": "avazu"}},
    ],
    ids=["machine", "threads", "data", "optimizer", "batch", "dataset"],
)
def test_what_does_not_compare_never_shares_a_contest(other):
    found = contests_of([*sized("a", FAST, MIB), *sized("b", FAST, MIB, **other)])
    assert [[entry.system for entry in contest.contenders] for contest in found].count(["a"]) == 1
    assert len(found) == 2


@pytest.mark.parametrize("seed", range(4))
def test_order_of_records_does_not_matter(seed):
    records = [*gpu_run(), *disk_run(), *disk_run("other[tier=file]", 1.0005)]

    def told(found):
        return [(contest.budgets, [order(contest, budget) for budget in contest.budgets]) for contest in found]

    assert told(contests_of(shuffled(records, seed))) == told(contests_of(records))
