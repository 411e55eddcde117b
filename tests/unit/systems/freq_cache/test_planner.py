"""The planner does what its rules say, field by field; what it takes of memory, and what it refuses."""

import random

import numpy as np
import pytest
from brute_force_planner import ByUse
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
    same_policies,
    traces,
    zipf_batches,
)

from systems.freq_cache.cache.plan import Distinct, OutsideTable
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LEVELS, LFU, LRU, Int32s


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


@SETTINGS
@given(
    batches=st.lists(
        st.tuples(st.dictionaries(st.integers(0, 9), st.integers(1, 40_000)), st.booleans()), min_size=1, max_size=12
    )
)
def test_lfu_key_is_the_level_of_what_training_has_used_up_to_saturation(
    batches: list[tuple[dict[int, int], bool]],
) -> None:
    policy, ranking = LFU(10), ByUse()
    for number, (occurrences, learn) in enumerate(batches):
        rows, times = (np.array(list(numbers), np.int32) for numbers in (occurrences, occurrences.values()))
        keys = policy.keys(rows, times, batch=number, learn=learn)
        assert keys.tolist() == list(ranking.keys(occurrences, batch=number, learn=learn).values())
    assert policy.state is not None
    assert policy.state.tolist() == [ranking.counts[row] for row in range(10)]


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


# Room and refusals


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


def test_more_rows_than_the_index_can_number_are_refused() -> None:
    with pytest.raises(ValueError, match="2\\^31"):
        Planner(rows=2**31 - 10, slots=100, policy=LRU())


@SETTINGS
@given(
    batch=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=4, max_size=4),
    bad=st.none() | st.tuples(st.integers(0, 3), st.sampled_from([-1, 10])),
    shared=st.booleans(),
)
def test_distinct_rows_come_in_the_order_in_which_a_batch_first_asks_for_them(
    batch: list[list[int]], bad: tuple[int, int] | None, shared: bool
) -> None:
    starts = [0, 10, 0, 20] if shared else [0, 10, 20, 30]
    planner, sizes = Planner(rows=40, slots=5, policy=LRU()), np.full(4, 10)
    if bad:
        spoilt = [[*ids, bad[1]] if feature == bad[0] else ids for feature, ids in enumerate(batch)]
        with pytest.raises(OutsideTable) as refused:
            planner.distinct(ids_of(spoilt, starts), sizes)
        assert refused.value.at == sum(map(len, spoilt[: bad[0] + 1])) - 1
    asked = [start + one for start, ids in zip(starts, batch, strict=True) for one in ids]
    distinct = planner.distinct(ids_of(batch, starts), sizes)  # the refused one leaves nothing behind
    assert distinct.rows.tolist() == list(dict.fromkeys(asked))
    assert distinct.counts.tolist() == [asked.count(row) for row in dict.fromkeys(asked)]
    assert distinct.rows[distinct.inverse].tolist() == asked


def test_rows_are_found_apart_while_a_batch_is_planned() -> None:
    trace = [ids_of([batch[0]], [0]) for batch in zipf_batches(60, 40, 25, seed=1)]
    found: list[Distinct] = []

    class Finding(LRU):
        def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
            found.append(apart.distinct(trace[min(batch + 1, 39)]))
            return super().keys(rows, occurrences, batch=batch, learn=learn)

    finding = Finding()
    apart, alone = (Planner(rows=60, slots=30, policy=policy, apart=policy is finding) for policy in (finding, LRU()))
    found.append(apart.distinct(trace[0]))
    for batch, ids in enumerate(trace):
        distinct = alone.distinct(ids)
        for one in ("rows", "counts", "inverse"):
            assert getattr(found[batch], one).tolist() == getattr(distinct, one).tolist()
        apart.announce(found[batch], changes=True)
        alone.announce(distinct, changes=True)
        plan, expected = apart.plan(), alone.plan()
        assert plan.fetch_rows.tolist() == expected.fetch_rows.tolist()
        assert plan.slots.tolist() == expected.slots.tolist()
    assert apart.index_bytes == alone.index_bytes + 4 * 60


class Wrong(LRU):
    def __init__(self, found: object) -> None:
        self._found = found

    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        return self._found

    def best(self, rows: int) -> Int32s:
        return self._found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (np.zeros(3, np.int32), r"keys\(\) of 2 rows returned 3 numbers: give 2"),
        (np.zeros(1, np.int32), r"keys\(\) of 2 rows returned 1 numbers: give 2"),
        (np.zeros(2, np.int64), r"returned int64 \[2\]: give an int32 array"),
        (np.zeros((2, 1), np.int32), r"returned int32 \[2, 1\]: give an int32 array"),
        (np.array([0, -1], np.int32), "returned -1: give numbers from 0 to 511"),
        (np.array([LEVELS, 0], np.int32), "returned 512: give numbers from 0 to 511"),
        (None, "returned NoneType: give an int32 array"),
        (np.arange(5, dtype=np.int32), r"best\(4\) returned 5 numbers: give at most 4"),
        (np.zeros(2, np.int32), r"best\(4\) returned a row twice: give each once"),
        (np.array([100], np.int32), r"best\(4\) returned 100: give numbers from 0 to 99"),
    ],
)
def test_what_a_policy_may_not_return_is_refused(found: object, message: str) -> None:
    planner = Planner(rows=100, slots=4, policy=Wrong(found))
    planner.announce(planner.distinct(ids_of([[5, 6]], [0])), changes=True)
    with pytest.raises(ValueError, match=message):
        planner.best(4) if "best" in message else planner.plan()
