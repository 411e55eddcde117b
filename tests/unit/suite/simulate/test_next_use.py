"""Next uses are those found by searching."""

from bounds_scenes import SETTINGS, RowTrace, batches_of
from hypothesis import given

from suite.simulate.models.belady import NextUses
from suite.simulate.trace import replayed


@SETTINGS
@given(batches=batches_of(20, most=12, longest=10))
def test_next_uses_are_those_found_by_searching(batches: list[list[int]]) -> None:
    trace = RowTrace(20, batches)
    stop = trace.length
    uses = NextUses(trace, stop)

    def search(row: int, start: int) -> int:
        return next((n for n in range(start, stop) if row in batches[n]), stop)

    assert uses.first.tolist() == [search(row, 0) for row in range(20)]
    for batch in replayed(trace, 0, stop):
        expected = [search(row, batch.number + 1) for row in batch.unique[0].tolist()]
        assert uses.of[batch.number].tolist() == expected
