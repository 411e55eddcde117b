"""The planner does what its rules say, field by field."""

import random

import numpy as np
import pytest
from brute_force_planner import BruteForcePlanner
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

from systems.freq_cache.planner.planner import Planner


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
def test_rows_that_leave_are_those_chosen_one_by_one(name: str, trace: Trace) -> None:
    """The rules speak of one victim at a time; seeking many at once may only change who gets which slot."""
    _, first = same_policies(name, trace.frequencies)
    _, second = same_policies(name, trace.frequencies)
    rounds = BruteForcePlanner(rows=trace.rows, slots=trace.slots, ranking=first)
    single = BruteForcePlanner(rows=trace.rows, slots=trace.slots, ranking=second, one_by_one=True)
    told = 0
    for at, step in enumerate(trace.steps):
        for coming in trace.steps[told : at + 1 + step.ahead]:
            for planner in (rounds, single):
                planner.announce(linear(coming.batch, trace.starts), changes=coming.changes)
        told = max(told, at + 1 + step.ahead)
        plans = [planner.plan() for planner in (rounds, single)]
        assert plans[0].missed == plans[1].missed
        assert sorted(plans[0].back_rows) == sorted(plans[1].back_rows)
        assert set(rounds.row) == set(single.row)


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
    """2,500 batches: LRU needs more queues than there are at first, again and again."""
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
def test_two_hundred_batches_may_be_announced_at_once(name: str) -> None:
    both = Both(rows=120, slots=50, policy=same_policies(name, list(range(120))))
    trace = zipf_batches(120, 600, 40, seed=3)
    for start in range(0, 600, 200):
        for batch in trace[start : start + 200]:
            both.announce(batch)
        for _ in range(150):
            both.plan()
        if start == 200:
            both.withdraw()
    while both.slow.announced:
        both.plan()


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


@pytest.mark.parametrize("scale", [1, 100])
def test_keys_of_a_policy_of_ones_own_rank_rows_however_high_they_are(scale: int) -> None:
    both = Both(rows=40, slots=12, policy=(TheirOwn(scale), TheirOwnRanking(scale)))
    for batch in zipf_batches(40, 200, 8, seed=5):
        both.announce(batch)
        both.plan()


def test_keys_far_apart_leave_the_index_consistent() -> None:
    """Too far for a queue of each: which row leaves is open, that the plans fit together is not."""
    planner = Planner(rows=40, slots=12, policy=TheirOwn(50_000))
    resident: set[int] = set()
    for batch in [[[3]], [[39]], *zipf_batches(40, 300, 8, seed=5)]:
        planner.announce(planner.distinct(ids_of(batch, [0])), changes=True)
        plan = planner.plan()
        assert plan.missed.tolist() == [row not in resident for row in plan.rows.tolist()]
        resident = resident - set(plan.back_rows.tolist()) | set(plan.rows.tolist())
        assert len(resident) <= 12
        assert sorted(planner.held(0, 40)[0].tolist()) == sorted(resident)
