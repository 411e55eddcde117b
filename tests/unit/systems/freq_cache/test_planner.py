"""The planner does what its rules say, field by field."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_traces import (
    POLICIES,
    SETTINGS,
    Both,
    TheirOwn,
    TheirOwnRanking,
    Trace,
    ids_of,
    linear,
    same_policies,
    traces,
    zipf_batches,
)

from systems.freq_cache.cache.planner import Planner


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(trace=traces(), warm=st.booleans(), batch_ids=st.integers(0, 40))
def test_every_plan_is_that_of_the_rules(name: str, trace: Trace, warm: bool, batch_ids: int) -> None:
    both = Both(
        rows=trace.rows,
        slots=trace.slots,
        policy=same_policies(name, trace.frequencies),
        starts=trace.starts,
        batch_ids=batch_ids,
    )
    if warm:
        both.warm_up()
    told = 0
    for at, step in enumerate(trace.steps):
        kind, low, high = step.before or ("", 0, 0)
        if kind == "withdraw":
            both.withdraw()
            told = at
        elif kind == "held":
            both.held(low, high)
        elif kind == "written":
            both.written(range(min(low, len(both.slow.row))))
        elif kind:
            getattr(both, kind)()
        for coming in trace.steps[told : at + 1 + step.ahead]:
            both.announce(coming.batch, changes=coming.changes)
        told = max(told, at + 1 + step.ahead)
        both.plan()
    both.withdraw()
    both.changed()


@SETTINGS
@given(name=st.sampled_from(POLICIES), trace=traces())
def test_index_stays_consistent_and_no_changed_row_is_lost(name: str, trace: Trace) -> None:
    """What holds whatever the rules: seen from the plans alone."""
    planner = Planner(rows=trace.rows, slots=trace.slots, policy=same_policies(name, trace.frequencies)[0])
    slot_of: dict[int, int] = {}
    changed: set[int] = set()
    told = 0
    for at, step in enumerate(trace.steps):
        for coming in trace.steps[told : at + 1 + step.ahead]:
            planner.announce(planner.distinct(ids_of(coming.batch, trace.starts)), changes=coming.changes)
        told = max(told, at + 1 + step.ahead)
        plan = planner.plan()
        ids = linear(step.batch, trace.starts)
        assert plan.rows[plan.inverse].tolist() == ids
        assert plan.missed.tolist() == [row not in slot_of for row in plan.rows.tolist()]
        assert plan.overflow == (len(set(ids)) > trace.slots)
        entering = dict(zip(plan.fetch_slots.tolist(), plan.fetch_rows.tolist(), strict=True))
        gone = {row for row, slot in slot_of.items() if slot in entering}
        assert not gone & set(ids)
        assert set(plan.back_rows.tolist()) == gone & changed
        assert [slot_of[row] for row in plan.back_rows.tolist()] == plan.back_slots.tolist()
        slot_of = {row: slot for row, slot in slot_of.items() if row not in gone}
        slot_of.update({row: slot for slot, row in entering.items()})
        changed -= gone
        assert [slot_of.get(row, -1) for row in plan.rows.tolist()] == np.maximum(plan.slots, -1).tolist()
        if not plan.overflow:
            assert set(ids) <= slot_of.keys()
        assert len(set(slot_of.values())) == len(slot_of) <= trace.slots
        if step.changes:
            changed |= set(ids) & slot_of.keys()
    rows, slots = planner.changed()
    assert set(rows.tolist()) == changed
    assert [slot_of[row] for row in rows.tolist()] == slots.tolist()
    planner.written(slots)
    assert planner.changed()[0].size == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "slots", "ahead"), [("lru", 40, 0), ("lfu", 170, 3), ("static", 400, 8), ("lru", 400, 8)]
)
def test_many_batches_over_queues_of_many_chunks(name: str, slots: int, ahead: int) -> None:
    rows = 600
    draw = random.Random(1)
    policy = same_policies(name, [draw.randrange(1000) for _ in range(rows)])
    both = Both(rows=rows, slots=slots, policy=policy)
    both.warm_up()
    trace = zipf_batches(rows, 2_500, slots // 2, seed=slots)
    for batch in trace[:ahead]:
        both.announce(batch)
    for number, batch in enumerate(trace[ahead:]):
        both.announce(batch, changes=number % 5 > 0)
        both.plan()


@pytest.mark.parametrize("name", POLICIES)
def test_pins_end_where_255_batches_are_announced(name: str) -> None:
    both = Both(rows=400, slots=300, policy=same_policies(name, list(range(400))))
    trace = zipf_batches(400, 900, 3, seed=4)
    for at in range(0, 900, 300):
        for batch in trace[at : at + 300]:
            both.announce(batch)
        for _ in range(200 + at // 6):
            both.plan()
        if at == 300:
            both.withdraw()
    while both.slow.announced:
        both.plan()


def test_numbers_of_batches_start_over_and_no_row_is_read_before_it_is_written_back() -> None:
    both = Both(rows=20, slots=2, policy=same_policies("lru", [0] * 20))
    around = 2**22
    both.fast._batches = both.slow.batches = around - 3
    for row in (0, 1, 2, 3, 0, 1, 2, 3):
        both.announce([[row]])
        both.plan()
    both.fast._batches = 2 * around + 10
    for row, number in ((0, 3), (1, 4)):
        both.announce([[row]])
        assert both.slow.plan().fetch_after == [around + number]
        assert both.fast.plan().fetch_after.tolist() == [2 * around + number]


@pytest.mark.parametrize("slots", [64, 33_300])
def test_withdrawing_rows_that_fill_the_cache_keeps_every_one_of_them(slots: int) -> None:
    """All slots wait for announced batches; afterwards all are queued by key, and each may leave once."""
    both = Both(rows=2 * slots, slots=slots, policy=same_policies("lru", [0] * 2 * slots))
    both.announce([range(slots)])
    both.announce([range(slots)])
    both.plan()
    both.withdraw()
    both.announce([range(slots, 2 * slots)])
    both.plan()


@pytest.mark.parametrize("scale", [1, 12])
def test_keys_of_a_policy_of_ones_own_rank_rows(scale: int) -> None:
    both = Both(rows=40, slots=12, policy=(TheirOwn(scale), TheirOwnRanking(scale)))
    for batch in zipf_batches(40, 200, 8, seed=5):
        both.announce(batch)
        both.plan()


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("ahead", [2, 6, 30])
def test_windows_with_more_rows_than_slots_are_planned_by_the_rules(name: str, ahead: int) -> None:
    """All rows that are in slots are pinned at times, and pins are taken back."""
    draw = random.Random(ahead)
    both = Both(rows=200, slots=40, policy=same_policies(name, [draw.randrange(1000) for _ in range(200)]))
    batches = [[[draw.randrange(200) for _ in range(draw.choice([5, 30, 38]))]] for _ in range(150)]
    for batch in batches[:ahead]:
        both.announce(batch)
    for batch in batches[ahead:]:
        both.announce(batch)
        both.plan()
    assert both.slow.taken_back > 0
