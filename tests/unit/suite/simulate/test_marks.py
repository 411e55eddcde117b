"""A set of numbers tells its highest, whatever comes and goes."""

from hypothesis import given
from hypothesis import strategies as st

from suite.simulate.models.belady import highest, mark, no_marks, unmark

MOST = 70_000
"""Takes three levels."""


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 63, 64, 127, 128, 4095, 4096, 65_535, MOST - 1]))))
def test_the_highest_is_that_of_a_set(changes: list[tuple[bool, int]]) -> None:
    marks, told = no_marks(MOST), set[int]()
    for joins, number in changes:
        (mark if joins else unmark)(marks, number)
        (told.add if joins else told.discard)(number)
        if told:
            assert highest(marks) == max(told)
    assert bool(marks.words.any()) == bool(told)
