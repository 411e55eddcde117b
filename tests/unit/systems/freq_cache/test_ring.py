"""Where the rows of announced batches are noted."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.freq_cache.planner import ring as ring_module
from systems.freq_cache.planner.ring import Ring, Segment

PARTS = st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=1, max_size=4)


@given(first=st.integers(0, 30), batches=st.lists(PARTS, max_size=40), window=st.integers(0, 5))
def test_no_batch_is_written_over_while_it_waits(
    first: int, batches: list[list[tuple[int, float]]], window: int
) -> None:
    ring = Ring(first)
    waiting: deque[list[Segment]] = deque()
    owner: dict[int, int] = {}
    for parts in batches:
        before = ring.positions
        wanted = [count for count, _ in parts]
        rooms = ring.room(wanted, (segment for batch in waiting for segment in batch))
        assert ring.positions >= before
        ends = [room + count for room, count in zip(rooms, wanted, strict=True)]
        assert min(rooms) >= 0
        assert max(ends) <= ring.positions
        for part, (room, count) in enumerate(zip(rooms, wanted, strict=True)):
            for position in range(room, room + count):  # parts are written at the same time
                assert owner.setdefault(position, part) == part
        segments = [(room, room + int(count * share)) for room, (count, share) in zip(rooms, parts, strict=True)]
        ring.advance(segments)
        waiting.append(segments)
        used = [position for batch in waiting for begin, end in batch for position in range(begin, end)]
        assert len(used) == len(set(used))
        if len(waiting) > window:
            waiting.popleft()


def test_equal_batches_of_several_parts_stop_asking_for_room() -> None:
    ring, sizes = Ring(0), []
    waiting: deque[list[Segment]] = deque()
    for _ in range(400):
        rooms = ring.room([100, 80, 90], (segment for batch in waiting for segment in batch))
        waiting.append([(room, room + 30) for room in rooms])
        ring.advance(waiting[-1])
        sizes.append(ring.positions)
        if len(waiting) > 8:
            waiting.popleft()
    assert len(set(sizes[40:])) == 1
    assert sizes[-1] <= 4 * (8 * 3 * 30 + 270)


def test_more_positions_than_can_be_numbered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "MOST_POSITIONS", 100)
    ring = Ring(10)
    (room,) = ring.room([40], [])
    ring.advance([(room, room + 40)])
    with pytest.raises(ValueError, match="announce fewer batches ahead"):
        ring.room([60], [(room, room + 40)])
    ring.room([40], [])  # the batch was planned
