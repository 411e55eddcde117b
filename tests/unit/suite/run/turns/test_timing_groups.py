"""Who takes turns with whom, in which process, and how many steps."""

import pytest

from suite.records.record import Status
from suite.records.scales import LEAD_STEPS
from suite.run.turns.groups import MemoryNeed, arrange, balanced_orders, who_takes_turns
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import measurement
from tests.unit.suite.run.runner_scenes import GB, REPEAT, ROOM, entrant


def names(group):
    return [one.name for one in group.participants]


def test_baseline_takes_turns_twice_and_kernels_of_others_not_at_all():
    alike, other = entrant("fbgemm_uvm", same_kernel_as="full_gpu"), entrant("full_gpu")
    (group,) = arrange(who_takes_turns([entrant("reference"), other, alike]), ROOM)
    assert names(group) == ["full_gpu", REPEAT, "reference"]
    assert (group.isolation, group.turns, group.steps) == ("one process", 3, 1)  # half a design in each of two builds
    failed = other.model_copy(update={"status": Status.CRASHED})
    assert who_takes_turns([alike]) == who_takes_turns([alike, failed]) == [alike]


@pytest.mark.parametrize(
    ("baseline_gb", "host_gb", "way", "groups"),
    [
        (33, 33, "several groups", [["full_gpu", REPEAT, "reference"], ["full_gpu", "freq_cache"]]),
        (50, 50, "several groups", [["full_gpu", REPEAT], ["full_gpu", "reference"], ["full_gpu", "freq_cache"]]),
        (60, 30, "several groups", [["full_gpu", "reference"], ["full_gpu", "freq_cache"]]),
        (60, 60, "alone", [["full_gpu"], ["reference"], ["freq_cache"]]),
    ],
)
def test_what_does_not_fit_together_meets_the_baseline_or_nobody(baseline_gb, host_gb, way, groups):
    others = [entrant(name, host_gb=host_gb) for name in ("reference", "freq_cache")]
    found = arrange([*others, entrant("full_gpu", host_gb=baseline_gb)], ROOM)
    assert [names(group) for group in found] == groups
    assert {group.isolation for group in found} == {way}


def test_different_systems_meet_before_their_variants():
    others = ("freq_cache", "freq_cache[tier=file]", "freq_cache[policy=lfu]", "mapped_table", "rocksdb_table")
    first, second = arrange([entrant("full_ram", host_gb=60), *(entrant(name, host_gb=12) for name in others)], ROOM)
    assert names(first) == ["full_ram", "freq_cache", "mapped_table", "rocksdb_table"]
    assert names(second) == ["full_ram", "freq_cache[tier=file]", "freq_cache[policy=lfu]"]


@pytest.mark.parametrize(("wanted", "turns"), [(8, 6), (14, 12), (1, 6)])
def test_turns_of_all_builds_together_are_whole_designs(wanted, turns):
    records = [entrant(f"s{number}", cell={"turns": wanted, "builds": 3}) for number in range(9)]
    (group,) = arrange(records, ROOM)
    assert len(balanced_orders(9)) == 18
    assert group.turns == turns


@pytest.mark.parametrize(("warmup", "runs"), [(160, 3), (2, 0), (3, 3)])
def test_systems_run_alone_where_the_warm_up_has_steps_for_it(warmup, runs):
    records = [entrant(name, cell={"turn_steps": 8, "warmup_steps": warmup}) for name in ("full_gpu", "reference")]
    (group,) = arrange(records, ROOM)
    assert (group.steps, group.alone_runs) == (8, runs)
    assert group.stream_steps == warmup + (LEAD_STEPS + 8) * (runs + 2 * group.turns)


@pytest.mark.parametrize(("pace", "steps"), [(None, 4), (39.0, 4), (44.0, 5), (96.0, 10), (400.0, 16)])
def test_turns_of_short_steps_last_as_long_as_others(pace, steps):
    alone = measurement(tiny_cell("full_gpu"), alone_steps_per_s=pace).timing
    given = {"reference": {}, "full_gpu": {"timing": alone}}
    (group,) = arrange([entrant(name, cell={"turn_steps": 4}, **more) for name, more in given.items()], ROOM)
    assert group.steps == steps


@pytest.mark.parametrize(
    ("epoch_steps", "turns", "steps"), [(1000, 18, 3), (130, 12, 3), (70, 6, 3), (46, 6, 2), (20, 4, 1)]
)
def test_small_dataset_gives_fewer_designs_then_shorter_turns_then_a_part_of_a_design(epoch_steps, turns, steps):
    cell = {"turns": 18, "turn_steps": 3, "train_steps": 3, "counted_steps": 2, "warmup_steps": 2, "builds": 1}
    records = [entrant(name, epoch_samples=32 * epoch_steps, cell=cell) for name in ("full_gpu", "reference")]
    (group,) = arrange(records, ROOM)
    assert (group.turns, group.steps) == (turns, steps)
    assert group.stream_steps == 2 + 2 * turns * (LEAD_STEPS + steps) <= epoch_steps


def test_who_works_between_steps_meets_the_baseline_apart_from_those_who_do_not():
    records = [entrant(name) for name in ("full_gpu", "reference")]
    busy = [entrant(name, busy_between_steps=True) for name in ("freq_cache", "freq_cache[look_ahead=4]")]
    calm, apart = arrange([*records, *busy], ROOM)
    assert names(calm) == ["full_gpu", REPEAT, "reference"]
    assert names(apart) == ["full_gpu", "freq_cache", "freq_cache[look_ahead=4]"]
    assert [[one.own_process for one in group.participants] for group in (calm, apart)] == [[False] * 3, [True] * 3]
    assert {calm.isolation, apart.isolation} == {"one process"}
    pairs = arrange([*records, *busy], MemoryNeed(host=2 * GB, device=GB, disk=GB))
    assert [names(pair) for pair in pairs[2:]] == [["full_gpu", "freq_cache"], ["full_gpu", "freq_cache[look_ahead=4]"]]


def test_needs_add_up_and_must_fit_in_every_kind_of_memory():
    memory = {"device_used_bytes": 2 * GB, "anatomy_bytes": {"disk/rows": 3 * GB}}
    records = [entrant(name, memory=memory) for name in ("reference", "freq_cache")]
    room = MemoryNeed(host=2 * GB, device=4 * GB, disk=6 * GB)
    assert [group.isolation for group in arrange(records, room)] == ["one process"]
    for kind in room._fields:
        less = room._replace(**{kind: getattr(room, kind) - 1})
        assert [group.isolation for group in arrange(records, less)] == ["alone", "alone"]
