"""What the planner takes of memory, and that it looks ahead as well as can be done."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_traces import POLICIES, SETTINGS, Both, ids_of, same_policies, zipf_batches

from systems.freq_cache.planner import order as order_module
from systems.freq_cache.planner.planner import Planner
from systems.freq_cache.planner.policy import LRFU, LRU, Int32s, Policy


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
        planner.announce(planner.distinct(ids_of([[(number * 7 + i) % 1000 for i in range(100)]], [0])), changes=True)
        if planner.announced > 4:
            planner.plan()
        sizes.append(planner.window_bytes)
    assert max(sizes[20:]) == max(sizes[250:])
    assert max(sizes) < 4 * 5 * 100 * 24  # a few times 20 B per row of a batch, and 4 B per id


@pytest.mark.slow
@pytest.mark.parametrize("slots", [100, 1000], ids=["evicting", "all rows fit"])
def test_index_of_lru_does_not_grow_with_the_batches_it_has_seen(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "_MOST_LEVELS", 2048)
    planner = Planner(rows=1000, slots=slots, policy=LRU())
    sizes = []
    for number in range(5_000):
        planner.announce(planner.distinct(ids_of([[0, number % 1000]], [0])), changes=True)
        planner.plan()
        sizes.append(planner.index_bytes)
    assert sizes[-1] == sizes[2_500]


@pytest.mark.parametrize("name", POLICIES)
def test_index_costs_at_most_eight_bytes_per_row(name: str) -> None:
    rows = 1_000_000
    policy, _ = same_policies(name, range(rows))
    planner = Planner(rows=rows, slots=rows // 100, policy=policy)
    planner.warm_up()
    for batch in zipf_batches(rows, 50, 2_000, seed=6):
        planner.announce(planner.distinct(ids_of(batch, [0])), changes=True)
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
        planner.announce(planner.distinct(ids_of([ids], [0])), changes=True)
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


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(case=fitting_traces(rows=30, most_slots=20, batches=25))
def test_with_everything_announced_every_batch_misses_what_belady_misses(
    name: str, case: tuple[int, list[list[int]]]
) -> None:
    slots, trace = case
    policy, _ = same_policies(name, list(range(30)))
    assert misses_when_all_is_known(30, slots, trace, policy) == belady(slots, trace)


class Leaping(Policy):
    """Keys never fall, and leap by any distance. Where nothing is learnt they are those of before."""

    def __init__(self, rows: int, leaps: list[int]) -> None:
        self._keys, self._leaps = np.zeros(rows, np.int64), leaps

    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        if learn:
            self._keys[rows] = np.minimum(self._keys[rows] + self._leaps[batch % len(self._leaps)], 2**31 - 1)
        return self._keys[rows].astype(np.int32)


@SETTINGS
@given(
    leaps=st.lists(st.sampled_from([0, 1, 40, 30_000, 70_000, 2**20, 2**31 - 1]), min_size=1, max_size=5),
    batches=st.lists(
        st.tuples(st.lists(st.integers(0, 29), min_size=1, max_size=4), st.booleans(), st.integers(1, 30)), max_size=30
    ),
)
def test_keys_that_leap_end_no_plan_in_a_loop_and_leave_the_index_right(
    leaps: list[int], batches: list[tuple[list[int], bool, int]]
) -> None:
    planner, held = Planner(rows=30, slots=4, policy=Leaping(30, leaps)), set[int]()
    for rows, changes, times in batches:
        for _ in range(times):
            planner.announce(planner.distinct(ids_of([rows], [0])), changes=changes)
            plan = planner.plan()
            assert set(plan.rows[plan.missed].tolist()) == set(rows) - held
            held = set(planner.held(0, 30)[0].tolist())
            assert set(rows) <= held
            assert len(held) <= 4


def test_plan_comes_to_an_end_where_keys_that_wait_are_far_above_those_of_the_batch() -> None:
    for batches in range(740, 790):
        planner = Planner(rows=100, slots=4, policy=LRFU(100, half_life=40))
        for _ in range(batches):
            planner.announce(planner.distinct(ids_of([[0, 1, 2]], [0])), changes=True)
            planner.plan()
        planner.announce(planner.distinct(ids_of([[50, 51]], [0])), changes=False)
        plan = planner.plan()
        assert sorted(planner.slots_of(np.array([50, 51])).tolist()) == sorted(plan.fetch_slots.tolist())


class Wrong(LRU):
    def __init__(self, found: object) -> None:
        self._found = found

    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        return self._found

    def best(self, rows: int) -> Int32s:
        return self._found


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.zeros(3, np.int32), "returned 3 numbers for 2 rows"),
        (np.zeros(1, np.int32), "returned 1 numbers for 2 rows"),
        (np.zeros(2, np.int64), r"returned int64 \[2\]: give an int32 array"),
        (np.zeros((2, 1), np.int32), r"returned int32 \[2, 1\]: give an int32 array"),
        (np.array([0, -1], np.int32), "returned the key -1: give none below 0"),
        ([0, 0], "returned list: give an int32 array"),
        (None, "returned NoneType: give an int32 array"),
    ],
)
def test_keys_that_are_not_one_for_each_row_are_refused(keys: object, message: str) -> None:
    planner = Planner(rows=100, slots=4, policy=Wrong(keys))
    planner.announce(planner.distinct(ids_of([[5, 6]], [0])), changes=True)
    with pytest.raises(ValueError, match=rf"Wrong\.keys\(\) {message}"):
        planner.plan()


@pytest.mark.parametrize(
    "best", [np.arange(5), np.array([0, 0]), np.array([100]), np.array([-1]), np.array([0.5]), [1, 2]], ids=str
)
def test_first_rows_that_have_no_slots_each_are_refused(best: object) -> None:
    found = best.astype(np.int32) if isinstance(best, np.ndarray) and best.dtype == np.int64 else best
    with pytest.raises(ValueError, match=r"Wrong\.best\("):
        Planner(rows=100, slots=4, policy=Wrong(found)).warm_up()
