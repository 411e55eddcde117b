"""Queues over one store behave as separate deques would, and never run out of room for each slot once."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from systems.freq_cache.cache.policy import CHUNK, EMPTY, Queues, empty_queues, pop, push


def content(queues: Queues, queue: int) -> list[int]:
    """What a queue holds, from the front, read off the arrays."""
    at, end = queues.ends[2 * queue].item(), queues.ends[2 * queue + 1].item()
    found: list[int] = []
    if at == EMPTY:
        return found
    while True:
        found.append(queues.store[at].item())
        at += 1
        if at == end:
            return found
        if at % CHUNK == 0:
            at = queues.link[at // CHUNK - 1].item() * CHUNK


def free_chunks(queues: Queues) -> int:
    """How long the list of free chunks is; a chunk in it twice would make it endless."""
    seen: set[int] = set()
    chunk = queues.link[-1].item()
    while chunk != EMPTY:
        assert chunk not in seen
        seen.add(chunk)
        chunk = queues.link[chunk].item()
    return len(seen)


class BesideDeques(RuleBasedStateMachine):
    """Each slot is in one queue at most, as the planner has it."""

    @initialize(queues=st.integers(1, 6), slots=st.sampled_from([1, 5, CHUNK, 3 * CHUNK + 1, 300]))
    def start(self, queues: int, slots: int) -> None:
        self.slots = slots
        self.queues = empty_queues(queues=queues, slots=slots)
        self.chunks = self.queues.link.size - 1
        self.expected: list[deque[int]] = [deque() for _ in range(queues)]
        self.out = deque(range(slots))

    @rule(draw=st.data(), count=st.integers(1, 120))
    def push(self, draw: st.DataObject, count: int) -> None:
        queue = draw.draw(st.integers(0, len(self.expected) - 1))
        for _ in range(min(count, len(self.out))):
            slot = self.out.popleft()
            push(self.queues, queue, slot)
            self.expected[queue].append(slot)

    @precondition(lambda self: any(self.expected))
    @rule(draw=st.data(), count=st.integers(1, 120))
    def pop(self, draw: st.DataObject, count: int) -> None:
        queue = draw.draw(st.sampled_from([at for at, slots in enumerate(self.expected) if slots]))
        for _ in range(min(count, len(self.expected[queue]))):
            slot = pop(self.queues, queue)
            assert slot == self.expected[queue].popleft()
            self.out.append(slot)

    @invariant()
    def content_is_that_of_the_deques(self) -> None:
        if hasattr(self, "queues"):
            assert [content(self.queues, at) for at in range(len(self.expected))] == [list(q) for q in self.expected]

    @invariant()
    def every_chunk_is_in_a_queue_or_free_and_some_are_always_free(self) -> None:
        if not hasattr(self, "queues"):
            return
        in_use = 0
        for front, back in self.queues.ends.reshape(-1, 2).tolist():
            at, last = front // CHUNK, (back - 1) // CHUNK
            in_use += front != EMPTY
            while front != EMPTY and at != last:
                at = self.queues.link[at].item()
                in_use += 1
        free = free_chunks(self.queues)
        assert free + in_use == self.queues.link.size - 1 == self.queues.store.size // CHUNK
        assert free > 0


TestBesideDeques = BesideDeques.TestCase
TestBesideDeques.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("slots", [1, CHUNK, 10 * CHUNK + 7])
def test_chunks_suffice_when_every_queue_begins_and_ends_in_a_part_of_one(slots: int) -> None:
    """Slots go round through the queues one at a time, so that every front and back reaches every place in a chunk."""
    queues = 5
    store = empty_queues(queues=queues, slots=slots)
    for slot in range(slots):
        push(store, slot % queues, slot)
    for turn in range(20 * CHUNK):
        source = next(at % queues for at in range(turn, turn + queues) if store.ends[2 * (at % queues)] != EMPTY)
        push(store, (source + 1 + turn // 7) % queues, pop(store, source))
        assert store.link[-1] != EMPTY
    found = sorted(slot for at in range(queues) for slot in content(store, at))
    assert found == list(range(slots))
