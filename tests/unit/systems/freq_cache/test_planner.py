"""The planner does what its rules say, field by field, and looks ahead as well as can be done."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from brute_force_planner import BruteForcePlan, BruteForcePlanner, ByFrequency, ByRecency, ByUse, Ranking
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from systems.freq_cache.planner import announce_loops
from systems.freq_cache.planner import order as order_module
from systems.freq_cache.planner import planner as planner_module
from systems.freq_cache.planner.planner import Ids, Plan, Planner
from systems.freq_cache.planner.policy import LFU, LRU, Policy, StaticFrequency

POLICIES = ("static", "lfu", "lru")
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Batch = Sequence[Sequence[int]]
"""The ids of every feature."""


def ids_of(batch: Batch, starts: Sequence[int]) -> Ids:
    values = [i for feature in batch for i in feature]
    ends = np.cumsum([len(feature) for feature in batch], dtype=np.int64)
    return Ids(np.array(values, np.int64), ends, np.array(starts, np.int64))


def same_policies(name: str, frequencies: Sequence[int]) -> tuple[Policy, Ranking]:
    if name == "static":
        half = len(frequencies) // 2  # two tables
        parts = [np.array(part, np.int64) for part in (frequencies[:half], frequencies[half:])]
        return StaticFrequency(parts), ByFrequency(frequencies)
    return (LFU(len(frequencies)), ByUse()) if name == "lfu" else (LRU(), ByRecency())


def assert_equal(plan: Plan, expected: BruteForcePlan) -> None:
    assert plan.batch == expected.batch
    assert plan.rows.tolist() == expected.rows
    assert plan.missed.tolist() == expected.missed
    assert plan.inverse.tolist() == expected.inverse
    assert plan.overflow == expected.overflow
    assert plan.fetch_rows.tolist() == expected.fetch_rows
    assert plan.fetch_slots.tolist() == expected.fetch_slots
    assert plan.back_rows.tolist() == expected.back_rows
    assert plan.back_slots.tolist() == expected.back_slots
    assert plan.fetch_after.tolist() == expected.fetch_after
    assert np.maximum(plan.slots, -1).tolist() == expected.slots
    assert plan.unique_ids == len(expected.rows)
    assert plan.unique_misses == sum(expected.missed)
    slots, lookup_misses = plan.slot_of_id, plan.lookup_misses
    assert np.maximum(slots, -1).tolist() == [expected.slots[i] for i in expected.inverse]
    assert lookup_misses == sum(expected.missed[i] for i in expected.inverse)


class Both:
    """A planner beside the brute-force one: whatever one is told, the other is, and they must answer alike."""

    def __init__(
        self, *, rows: int, slots: int, policy: tuple[Policy, Ranking], starts: Sequence[int] = (0,), batch_ids: int = 0
    ) -> None:
        self.starts = starts
        self.fast = Planner(rows=rows, slots=slots, policy=policy[0], batch_ids=batch_ids)
        self.slow = BruteForcePlanner(rows=rows, slots=slots, ranking=policy[1])

    def announce(self, batch: Batch, *, changes: bool = True) -> None:
        self.fast.announce(ids_of(batch, self.starts), changes=changes)
        self.slow.announce(linear(batch, self.starts), changes=changes)
        assert self.fast.announced == len(self.slow.announced)

    def plan(self) -> BruteForcePlan:
        plan, expected = self.fast.plan(), self.slow.plan()
        assert_equal(plan, expected)
        return expected

    def withdraw(self) -> None:
        self.fast.withdraw()
        self.slow.withdraw()
        assert self.fast.announced == 0

    def warm_up(self) -> None:
        agree(self.fast.warm_up(), self.slow.warm_up())

    def changed(self) -> None:
        agree(self.fast.changed(), self.slow.changed())

    def held(self, start: int, stop: int) -> None:
        agree(self.fast.held(start, stop), self.slow.held(start, stop))

    def change(self, slots: Sequence[int]) -> None:
        self.fast.change(np.array(slots, np.int32))
        self.slow.change(slots)


def agree(found: tuple[NDArray[np.int32], NDArray[np.int32]], expected: tuple[list[int], list[int]]) -> None:
    assert tuple(part.tolist() for part in found) == expected


def linear(batch: Batch, starts: Sequence[int]) -> list[int]:
    return [start + i for start, feature in zip(starts, batch, strict=True) for i in feature]


@dataclass(frozen=True)
class Step:
    """One batch, how many others are announced when it is planned, and what is done before that."""

    batch: Batch
    changes: bool
    ahead: int
    before: tuple[str, int, int] | None


@dataclass(frozen=True)
class Trace:
    rows: int
    slots: int
    starts: list[int]
    frequencies: list[int]
    steps: list[Step] = field(repr=False)


@st.composite
def traces(draw: st.DrawFn, *, most_rows: int = 14, most_ids: int = 8) -> Trace:
    tables = draw(st.lists(st.integers(1, most_rows), min_size=1, max_size=3))
    order = draw(st.lists(st.integers(0, len(tables) - 1), min_size=1, max_size=4).map(sorted))
    rows = sum(tables)
    features = [st.lists(st.integers(0, tables[at] - 1), max_size=most_ids) for at in order]
    before = st.tuples(
        st.sampled_from(["withdraw", "changed", "held", "change", "warm_up"]),
        st.integers(0, rows),
        st.integers(0, rows),
    )
    step = st.builds(
        Step,
        batch=st.tuples(*features),
        changes=st.booleans(),
        ahead=st.integers(0, 8),
        before=st.one_of(st.none(), st.none(), before),
    )
    return Trace(
        rows=rows,
        slots=draw(st.integers(1, rows)),
        starts=[sum(tables[:at]) for at in order],
        frequencies=draw(st.lists(st.integers(0, 6) | st.integers(0, 2**40), min_size=rows, max_size=rows)),
        steps=draw(st.lists(step, max_size=25)),
    )


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
        elif kind == "change":
            both.change(range(min(low, len(both.slow.row))))
        elif kind:
            getattr(both, kind)()
        for coming in trace.steps[told : at + 1 + step.ahead]:
            both.announce(coming.batch, changes=coming.changes)
        told = max(told, at + 1 + step.ahead)
        both.plan()
    both.withdraw()
    both.changed()


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(trace=traces())
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


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(trace=traces())
def test_index_stays_consistent_and_no_changed_row_is_lost(name: str, trace: Trace) -> None:
    """What holds whatever the rules: seen from the plans alone."""
    planner = Planner(rows=trace.rows, slots=trace.slots, policy=same_policies(name, trace.frequencies)[0])
    slot_of: dict[int, int] = {}
    changed: set[int] = set()
    told = 0
    for at, step in enumerate(trace.steps):
        for coming in trace.steps[told : at + 1 + step.ahead]:
            planner.announce(ids_of(coming.batch, trace.starts), changes=coming.changes)
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
    assert planner.changed()[0].size == 0


def zipf_batches(rows: int, batches: int, most_ids: int, *, seed: int, skew: float = 1.5) -> list[Batch]:
    draw = random.Random(seed)
    found = []
    for _ in range(batches):
        count = draw.choice([0, 1, most_ids // 2, most_ids, most_ids])
        found.append([[int(rows * draw.random() ** (1 + skew)) for _ in range(count)]])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("slots", "ahead"), [(40, 0), (170, 3), (400, 8)])
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


@pytest.mark.parametrize("name", POLICIES)
def test_announcing_and_withdrawing_for_ever_takes_no_more_room(name: str) -> None:
    both = Both(rows=60, slots=20, policy=same_policies(name, [5] * 60), batch_ids=16)
    trace = zipf_batches(60, 300, 16, seed=4)
    rooms = set()
    for at in range(0, 300, 3):
        for batch in trace[at : at + 3]:
            both.announce(batch)
        both.plan()
        both.withdraw()
        if at > 150:
            rooms.add(both.fast.window_bytes)
    assert len(rooms) == 1


@pytest.mark.parametrize("name", [*POLICIES, "one's own", "one's own, fixed"])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "last part first"])
def test_batch_in_parts_is_planned_as_a_whole_one(name: str, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are worked on at the same time, so they must not care which of them is done first."""

    def in_parts(work: Callable[[int], None], parts: int) -> None:
        for part in range(parts)[::order]:
            work(part)

    monkeypatch.setattr(planner_module, "in_parts", in_parts)
    monkeypatch.setattr(planner_module, "_PART_IDS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    draw = random.Random(7)
    starts = [20 * (feature // 2) for feature in range(12)]  # two features to a table
    policy: tuple[Policy, Ranking]
    if name in POLICIES:
        policy = same_policies(name, [draw.randrange(9) for _ in range(120)])
    else:
        policy = TheirOwn(1), TheirOwnRanking(1)
        policy[0].fixed = policy[1].fixed = name.endswith("fixed")
        assert not policy[0].divisible
    both = Both(rows=120, slots=90, policy=policy, starts=starts)
    for number in range(90):
        both.announce([[draw.randrange(20) for _ in range(draw.choice([0, 1, 4, 12]))] for _ in starts])
        if number % 30 == 29:
            both.withdraw()
        elif number % 30 >= 3:
            both.plan()


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_batches_are_shared_out_by_ids_and_not_within_a_table(most: int) -> None:
    draw = random.Random(most)
    for _ in range(300):
        tables = [draw.choice([1, 1, 2]) for _ in range(draw.choice([1, 3, 10]))]
        starts = np.array([100 * table for table, features in enumerate(tables) for _ in range(features)])
        lengths = [draw.choice([0, 1, 5, 40]) for _ in starts]
        begins, edges = np.empty(len(starts) + 1, np.int64), np.empty(most + 1, np.int64)
        parts = announce_loops.divide(np.cumsum(lengths), starts, begins, edges)
        assert begins.tolist() == [0, *np.cumsum(lengths).tolist()]
        shares = [slice(*edge) for edge in pairwise(edges[: parts + 1].tolist())]
        assert parts <= most
        assert [feature for share in shares for feature in range(len(starts))[share]] == list(range(len(starts)))
        used = [set(starts[share].tolist()) for share in shares]
        assert all(used)
        assert sum(map(len, used)) == len(tables)
        by_table = [int(np.sum(np.array(lengths)[starts == start])) for start in np.unique(starts)]
        assert max(sum(lengths[share]) for share in shares) <= sum(lengths) / most + 2 * max(by_table)


@pytest.mark.parametrize("look_ahead", [0, 3])
def test_large_batches_are_planned_alike_on_any_number_of_threads(
    look_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With threads that really run at the same time."""
    generator, sizes = np.random.default_rng(0), [90_000, 5, 150_000, 400, 60_000, 200_000]
    starts, ends = np.cumsum(sizes) - sizes, 70_000 * np.arange(1, len(sizes) + 1)
    batches = [
        Ids(np.concatenate([size * generator.random(70_000) ** 3 for size in sizes]).astype(np.int64), ends, starts)
        for _ in range(10)
    ]

    def plans(threads: int) -> list[Plan]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        planner, made = Planner(rows=sum(sizes), slots=200_000, policy=LFU(sum(sizes))), []
        for batch in batches:
            planner.announce(batch, changes=True)
            if planner.announced > look_ahead:
                made.append(planner.plan())
        return made

    alone = plans(1)
    assert batches[0].values.size > 3 * planner_module._PART_IDS
    assert min(plan.unique_misses for plan in alone) > 20_000
    assert alone[-1].back_rows.size
    for threads in (2, 3):
        for one, other in zip(alone, plans(threads), strict=True):
            for name in (
                "rows",
                "slots",
                "missed",
                "inverse",
                "slot_of_id",
                "fetch_rows",
                "fetch_slots",
                "fetch_after",
                "back_rows",
                "back_slots",
            ):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert one.lookup_misses == other.lookup_misses


def test_batches_that_outgrow_the_window_are_linked_across_its_growth() -> None:
    both = Both(rows=500, slots=300, policy=same_policies("lru", [0] * 500))
    for size in (1, 0, 3, 10, 50, 200, 500):
        both.announce([[*range(size), *range(size)]])
    before = both.fast.window_bytes
    for _ in range(7):
        both.plan()
    assert both.fast.window_bytes < before  # the batches are gone


def test_window_of_equal_batches_stops_growing() -> None:
    planner = Planner(rows=1000, slots=500, policy=LRU())
    sizes = []
    for number in range(500):
        planner.announce(ids_of([[(number * 7 + i) % 1000 for i in range(100)]], [0]), changes=True)
        if planner.announced > 4:
            planner.plan()
        sizes.append(planner.window_bytes)
    assert max(sizes[20:]) == max(sizes[250:])
    assert max(sizes) < 4 * 5 * 100 * 24  # a few times 20 B per row of a batch, and 4 B per id


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


class TheirOwn(Policy):
    """A policy of somebody else: high row numbers are dear, by keys beyond those of the built-in policies."""

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def keys(
        self, rows: NDArray[np.int32], occurrences: NDArray[np.int32], *, batch: int, learn: bool
    ) -> NDArray[np.int32]:
        return (rows * self.scale).astype(np.int32)


class TheirOwnRanking(Ranking):
    def __init__(self, scale: int) -> None:
        self.scale = scale

    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        return {row: row * self.scale for row in occurrences}


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
        planner.announce(ids_of(batch, [0]), changes=True)
        plan = planner.plan()
        assert plan.missed.tolist() == [row not in resident for row in plan.rows.tolist()]
        resident = resident - set(plan.back_rows.tolist()) | set(plan.rows.tolist())
        assert len(resident) <= 12
        assert sorted(planner.held(0, 40)[0].tolist()) == sorted(resident)
        planner.change(np.arange(len(resident), dtype=np.int32))


@pytest.mark.parametrize("slots", [100, 1000], ids=["evicting", "all rows fit"])
def test_index_of_lru_does_not_grow_with_the_batches_it_has_seen(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "_MOST_LEVELS", 2048)
    planner = Planner(rows=1000, slots=slots, policy=LRU())
    sizes = []
    for number in range(10_000):
        planner.announce(ids_of([[0, number % 1000]], [0]), changes=True)
        planner.plan()
        sizes.append(planner.index_bytes)
    assert sizes[-1] == sizes[5_000]


@pytest.mark.parametrize("name", POLICIES)
def test_index_costs_at_most_eight_bytes_per_row(name: str) -> None:
    rows = 1_000_000
    policy, _ = same_policies(name, range(rows))
    planner = Planner(rows=rows, slots=rows // 100, policy=policy)
    planner.warm_up()
    for batch in zipf_batches(rows, 50, 2_000, seed=6):
        planner.announce(ids_of(batch, [0]), changes=True)
        planner.plan()
    assert planner.index_bytes <= 8 * rows


def test_more_rows_than_the_index_can_number_are_refused() -> None:
    with pytest.raises(ValueError, match="2\\^31"):
        Planner(rows=2**31 - 10, slots=100, policy=LRU())


@st.composite
def fitting_traces(draw: st.DrawFn, *, rows: int, most_slots: int, batches: int) -> tuple[int, list[list[int]]]:
    slots = draw(st.integers(1, most_slots))
    ids = st.lists(st.integers(0, rows - 1), max_size=slots)
    return slots, draw(st.lists(ids, max_size=batches))


def misses_when_all_is_known(rows: int, slots: int, trace: list[list[int]], policy: Policy) -> list[int]:
    planner = Planner(rows=rows, slots=slots, policy=policy)
    for ids in trace:
        planner.announce(ids_of([ids], [0]), changes=True)
    return [planner.plan().unique_misses for _ in trace]


def belady(slots: int, trace: list[list[int]]) -> list[int]:
    """Misses of every batch if the rows leave that are needed last, none of the batch in hand."""
    resident: set[int] = set()
    misses = []
    for at, ids in enumerate(trace):

        def next_use(row: int, at: int = at) -> int:
            return next((later for later in range(at + 1, len(trace)) if row in trace[later]), len(trace))

        misses.append(len(set(ids) - resident))
        idle = sorted(resident - set(ids), key=next_use)
        resident = set(ids) | set(idle[: slots - len(set(ids))])
    return misses


def fewest_misses(slots: int, trace: list[list[int]]) -> int:
    """Over every way of choosing what stays."""
    best = {frozenset[int](): 0}
    for ids in trace:
        after: dict[frozenset[int], int] = {}
        for resident, misses in best.items():
            total = misses + len(set(ids) - resident)
            idle = resident - set(ids)
            room = min(slots - len(set(ids)), len(idle))
            for kept in combinations(sorted(idle), room):
                now = frozenset(ids).union(kept)
                after[now] = min(total, after.get(now, total))
        best = after
    return min(best.values())


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(case=fitting_traces(rows=30, most_slots=20, batches=25))
def test_with_everything_announced_every_batch_misses_what_belady_misses(
    name: str, case: tuple[int, list[list[int]]]
) -> None:
    slots, trace = case
    policy, _ = same_policies(name, list(range(30)))
    assert misses_when_all_is_known(30, slots, trace, policy) == belady(slots, trace)


@settings(SETTINGS, max_examples=60)
@given(case=fitting_traces(rows=7, most_slots=4, batches=9))
def test_with_everything_announced_no_choice_of_victims_misses_less(case: tuple[int, list[list[int]]]) -> None:
    slots, trace = case
    assert sum(misses_when_all_is_known(7, slots, trace, LFU(7))) == fewest_misses(slots, trace)
