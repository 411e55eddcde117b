"""Who takes turns with whom, in which process, and how many steps."""

import pytest

from suite.records.record import Status
from suite.records.scales import LEAD_STEPS
from suite.run.turns.groups import LONG_TURN, MemoryNeed, arrange, who_takes_turns
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import measurement
from tests.unit.suite.run.runner_scenes import GB, REPEAT, ROOM, entrant


def names(group):
    return [one.name for one in group.participants]


def test_baseline_takes_turns_twice_and_kernels_of_others_not_at_all():
    alike, other = entrant("fbgemm_uvm", same_kernel_as="full_gpu"), entrant("full_gpu")
    (group,) = arrange(who_takes_turns([entrant("reference"), other, alike]), ROOM)
    assert names(group) == ["full_gpu", REPEAT, "reference"]
    assert (group.isolation, group.turns, group.steps) == ("one process", 6, 1)  # a whole design of three
    failed = other.model_copy(update={"status": Status.CRASHED})
    assert who_takes_turns([alike]) == who_takes_turns([alike, failed]) == [alike]


@pytest.mark.parametrize(
    ("baseline_gb", "host_gb", "way", "groups"),
    [
        (33, 33, "two by two", [["full_gpu", REPEAT], ["full_gpu", "reference"], ["full_gpu", "freq_cache"]]),
        (60, 30, "two by two", [["full_gpu", "reference"], ["full_gpu", "freq_cache"]]),
        (60, 60, "alone", [["full_gpu"], ["reference"], ["freq_cache"]]),
    ],
)
def test_what_does_not_fit_together_meets_the_baseline_or_nobody(baseline_gb, host_gb, way, groups):
    others = [entrant(name, host_gb=host_gb) for name in ("reference", "freq_cache")]
    found = arrange([*others, entrant("full_gpu", host_gb=baseline_gb)], ROOM)
    assert [names(group) for group in found] == groups
    assert {group.isolation for group in found} == {way}


@pytest.mark.parametrize(("short_turns", "turns"), [(20, 6), (40, 12), (2, 6)])
def test_turns_are_long_where_somebody_works_between_steps(short_turns, turns):
    """They take about twice the steps of short ones, in whole designs."""
    changes = ({}, {"busy_between_steps": True})
    records = [
        entrant(name, cell={"turns": short_turns}, **change)
        for name, change in zip(("full_gpu", "freq_cache"), changes, strict=True)
    ]
    (group,) = arrange(records, ROOM)
    assert (group.steps, group.turns) == (LONG_TURN, turns)


@pytest.mark.parametrize(("pace", "steps"), [(None, 4), (99.0, 4), (110.0, 5), (240.0, 10), (1000.0, 16)])
@pytest.mark.parametrize("busy", [False, True])
def test_turns_of_short_steps_last_as_long_as_others(pace, steps, busy):
    alone = measurement(tiny_cell("full_gpu"), alone_steps_per_s=pace).timing
    given = {"reference": {"busy_between_steps": busy}, "full_gpu": {"timing": alone}}
    (group,) = arrange([entrant(name, cell={"turn_steps": 4}, **more) for name, more in given.items()], ROOM)
    assert group.steps == max(steps, LONG_TURN if busy else 0)


@pytest.mark.parametrize(
    ("epoch_steps", "turns", "steps"), [(1000, 18, 3), (130, 12, 3), (70, 6, 3), (56, 6, 2), (30, 4, 1)]
)
def test_small_dataset_gives_fewer_designs_then_shorter_turns_then_a_part_of_a_design(epoch_steps, turns, steps):
    cell = {"turns": 18, "turn_steps": 3, "train_steps": 3, "counted_steps": 2, "warmup_steps": 4}
    records = [entrant(name, epoch_samples=32 * epoch_steps, cell=cell) for name in ("full_gpu", "reference")]
    (group,) = arrange(records, ROOM)
    assert (group.turns, group.steps) == (turns, steps)
    assert group.stream_steps == 4 + 2 * turns * (LEAD_STEPS + steps) <= epoch_steps


def test_who_works_between_steps_meets_the_baseline_apart_from_those_who_do_not():
    records = [entrant(name) for name in ("full_gpu", "reference")]
    busy = [entrant(name, busy_between_steps=True) for name in ("freq_cache", "freq_cache[look_ahead=4]")]
    calm, long = arrange([*records, *busy], ROOM)
    assert names(calm) == ["full_gpu", REPEAT, "reference"]
    assert names(long) == ["full_gpu", "freq_cache", "freq_cache[look_ahead=4]"]
    assert [[one.own_process for one in group.participants] for group in (calm, long)] == [[False] * 3, [True] * 3]
    assert (calm.steps, long.steps > 1, long.isolation) == (1, True, "one process")
    pairs = arrange([*records, *busy], MemoryNeed(host=2 * GB, device=GB, disk=GB))
    assert [names(pair) for pair in pairs[2:]] == [["full_gpu", "freq_cache"], ["full_gpu", "freq_cache[look_ahead=4]"]]
    assert [pair.steps for pair in pairs] == [1, 1, long.steps, long.steps]


def test_needs_add_up_and_must_fit_in_every_kind_of_memory():
    memory = {"device_used_bytes": 2 * GB, "anatomy_bytes": {"disk/rows": 3 * GB}}
    records = [entrant(name, memory=memory) for name in ("reference", "freq_cache")]
    room = MemoryNeed(host=2 * GB, device=4 * GB, disk=6 * GB)
    assert [group.isolation for group in arrange(records, room)] == ["one process"]
    for kind in room._fields:
        less = room._replace(**{kind: getattr(room, kind) - 1})
        assert [group.isolation for group in arrange(records, less)] == ["alone", "alone"]
