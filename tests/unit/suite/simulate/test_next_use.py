"""Next uses are those found by searching, batch by batch and of several batches at once."""

import numpy as np
import pytest
from bounds_scenes import SETTINGS, RowTrace, batches_of
from hypothesis import given

from suite.simulate import trace as traces
from suite.simulate.models.next_use import NextUses
from suite.simulate.trace import replayed
from systems.freq_cache.cache.plan import Ids


@SETTINGS
@given(batches=batches_of(20, most=12, longest=10))
def test_next_uses_are_those_found_by_searching(batches: list[list[int]]) -> None:
    trace = RowTrace(20, batches)
    stop = trace.length

    def search(row: int, start: int) -> int:
        return next((n for n in range(start, stop) if row in batches[n]), stop)

    with pytest.MonkeyPatch.context() as patch:
        for run_ids in (1, 2 * max(1, trace.batch_lookups)):  # one batch, or two at once
            patch.setattr(traces, "RUN_IDS", run_ids)
            uses = NextUses(trace, stop)
            assert uses.first.tolist() == [search(row, 0) for row in range(20)]
            expected = [
                [search(row, batch.number + 1) for row in batch.unique[0].tolist()]
                for batch in replayed(trace, 0, stop)
            ]
            assert [uses.of(number).tolist() for number in range(stop)] == expected
    if stop > 1:
        assert uses.of(0, 2).tolist() == [*expected[0], *expected[1]]


def test_batch_numbers_may_exceed_sixteen_bits() -> None:
    class Long(RowTrace):
        """Row 1 in the first batch and in the last, row 0 in all."""

        def ids(self, index: int) -> Ids:
            both = index in (0, self.length - 1)
            return Ids(np.zeros(1 + both, np.int64), np.array([1, 1 + both]), self.table_starts)

    trace = Long(2, [[0, 1]])
    trace.length = 65_540
    uses = NextUses(trace, trace.length)
    assert uses.first.tolist() == [0, 0]
    assert uses.of(0).tolist() == [1, 65_539]
    assert uses.of(65_538).tolist() == [65_539]
    assert uses.of(65_539).tolist() == [65_540, 65_540]
