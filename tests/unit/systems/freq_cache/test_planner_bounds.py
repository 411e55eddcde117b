"""What the planner takes of memory, and that it looks ahead as well as can be done."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_traces import POLICIES, SETTINGS, Both, ids_of, same_policies, zipf_batches

from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.cache.policy import LEVELS, LRU, Int32s


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


@pytest.mark.parametrize("name", POLICIES)
@SETTINGS
@given(
    slots=st.integers(1, 20),
    batches=st.lists(st.lists(st.integers(0, 29), max_size=8), max_size=25),
    ahead=st.integers(0, 6),
)
def test_no_row_leaves_that_a_window_which_fits_needs(
    name: str, slots: int, batches: list[list[int]], ahead: int
) -> None:
    planner = Planner(rows=30, slots=slots, policy=same_policies(name, list(range(30)))[0])
    coming: list[list[int]] = []
    held, pinned = set[int](), True  # since all that a window needs was last seen to fit
    for ids in batches:
        coming.append(ids)
        planner.announce(planner.distinct(ids_of([ids], [0])), changes=True)
        pinned = len({row for batch in coming for row in batch}) <= slots and (pinned or len(coming) == 1)
        if len(coming) <= ahead:
            continue
        now = coming.pop(0)
        assert set(planner.plan().rows.tolist()) == set(now)
        before, held = held, set(planner.held(0, 30)[0].tolist())
        if pinned:
            assert not (before - held) & {row for batch in [now, *coming] for row in batch}


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
        (np.zeros(3, np.int32), "returned 3 numbers: give 2"),
        (np.zeros(1, np.int32), "returned 1 numbers: give 2"),
        (np.zeros(2, np.int64), r"returned int64 \[2\]: give an int32 array"),
        (np.zeros((2, 1), np.int32), r"returned int32 \[2, 1\]: give an int32 array"),
        (np.array([0, -1], np.int32), "returned -1: give numbers from 0 to 511"),
        (np.array([LEVELS, 0], np.int32), "returned 512: give numbers from 0 to 511"),
        ([0, 0], "returned list: give an int32 array"),
        (None, "returned NoneType: give an int32 array"),
    ],
)
def test_keys_that_are_not_one_for_each_row_are_refused(keys: object, message: str) -> None:
    planner = Planner(rows=100, slots=4, policy=Wrong(keys))
    planner.announce(planner.distinct(ids_of([[5, 6]], [0])), changes=True)
    with pytest.raises(ValueError, match=rf"Wrong\.keys\(\) of 2 rows {message}"):
        planner.plan()


@pytest.mark.parametrize(
    ("best", "message"),
    [
        (np.arange(5), "returned 5 numbers: give at most 4"),
        (np.array([0, 0]), "returned a row twice: give each once"),
        (np.array([100]), "returned 100: give numbers from 0 to 99"),
        (np.array([-1]), "returned -1: give numbers from 0 to 99"),
        (np.array([0.5]), r"returned float64 \[1\]: give an int32 array"),
        ([1, 2], "returned list: give an int32 array"),
    ],
)
def test_first_rows_that_have_no_slots_each_are_refused(best: object, message: str) -> None:
    found = best.astype(np.int32) if isinstance(best, np.ndarray) and best.dtype == np.int64 else best
    with pytest.raises(ValueError, match=rf"Wrong\.best\(4\) {message}"):
        Planner(rows=100, slots=4, policy=Wrong(found)).warm_up()
