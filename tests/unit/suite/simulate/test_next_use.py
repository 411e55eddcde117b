"""Next uses are those found by searching, wherever they are kept; rows are ranked by frequency, exactly."""

import errno
import tempfile

import numpy as np
import pytest
from bounds_scenes import SETTINGS, RowTrace, batches_of
from hypothesis import given

from suite.simulate import trace as traces
from suite.simulate.models.model import CannotReplay
from suite.simulate.models.next_use import NextUses
from suite.simulate.trace import replayed
from systems.freq_cache.cache.plan import Ids


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
        assert uses.of(batch.number).tolist() == expected


def test_next_uses_beyond_a_limit_of_memory_are_read_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "RUN_IDS", 60)  # two batches at once
    generator = np.random.default_rng(5)
    trace = RowTrace(50, [generator.integers(0, 50, 30).tolist() for _ in range(20)])
    kept, spooled, mixed = (NextUses(trace, 20, in_memory_bytes=limit) for limit in (1 << 20, 1, 300))
    for batch in (3, 19, 0, 3):
        assert kept.of(batch).tolist() == spooled.of(batch).tolist() == mixed.of(batch).tolist()
    both = [*kept.of(4).tolist(), *kept.of(5).tolist()]
    assert kept.of(4, 6).tolist() == spooled.of(4, 6).tolist() == both


def test_a_full_drive_is_a_reason_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    trace = RowTrace(4, [[0, 1]])
    with pytest.raises(CannotReplay, match=r"do not fit in .*No space left on device.*fewer batches, or set TMPDIR"):
        NextUses(trace, 1, in_memory_bytes=1)


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
