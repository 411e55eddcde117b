"""File tiers, with a level of RAM and without, beside a plain tensor; and which rows that level holds."""

import tempfile
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from systems.freq_cache.tiers.ram_index import IN_RAM, RamIndex
from systems.freq_cache.tiers.slow_tier import RowLayout
from tests.faults.kept_tiers import KeptTier

ROWS = 60
LAYOUT = RowLayout(4, torch.float32, {"sum": 1})


def opened(directory: Path, *, places: int, keys: bool = False, rows: int = ROWS) -> KeptTier:
    tier = KeptTier(
        directory,
        rows=rows,
        layout=LAYOUT,
        initialize=lambda rows: (rows[:, None] / 100).expand(-1, LAYOUT.dim),
        ram_bytes=places * (LAYOUT.record_bytes + RamIndex.BYTES),
        keys=(lambda rows: rows % 3) if keys else None,
    )
    assert tier.ram_rows == places
    return tier


class AgainstATensor(RuleBasedStateMachine):
    """Batches take rows and slots let go of them; flushes, commits and crashes come at any time.

    A level of RAM has up to 40 places, or there is none.
    """

    @initialize(places=st.just(0) | st.integers(1, 40), keys=st.booleans())
    def start(self, places: int, keys: bool) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.places, self.keys = places, keys
        self.tier = opened(Path(self.temporary.name) / "tier", places=places, keys=keys)
        self.now = self.tier.held()
        self.committed, self.extra = self.now.clone(), {}
        self.in_slots: set[int] = set()
        self.batch, self.moved_batch, self.written = 0, 0, 0
        self.taken: dict[int, list[int]] = {}

    def records(self, count: int) -> Tensor:
        self.written += 1
        return torch.arange(count)[:, None] / 64 + torch.full((count, LAYOUT.width), float(self.written))

    @rule(rows=st.lists(st.integers(0, ROWS - 1), unique=True, max_size=30))
    def take(self, rows: list[int]) -> None:
        coming = {row for taken in self.taken.values() for row in taken}
        rows = [row for row in rows if row not in self.in_slots | coming]
        wanted = torch.tensor(rows, dtype=torch.int64)
        for _ in range(2):  # a read that is interrupted is repeated
            assert torch.equal(self.tier.held(wanted), self.now[wanted])
            self.tier.take(wanted, self.batch)
        self.taken[self.batch] = rows
        self.batch += 1

    @precondition(lambda self: self.moved_batch < self.batch)
    @rule()
    def move(self) -> None:
        assert torch.equal(
            self.tier.held(rows := torch.tensor(self.taken[self.moved_batch], dtype=torch.int64)), self.now[rows]
        )
        self.in_slots |= set(self.taken.pop(self.moved_batch))
        self.tier.moved(self.moved_batch)
        self.moved_batch += 1

    @rule(draw=st.data())
    def evict(self, draw: st.DataObject) -> None:
        coming = {row for rows in self.taken.values() for row in rows}
        free = sorted(set(range(ROWS)) - coming)  # most are in slots; others are written as overflow batches do
        rows = torch.tensor(draw.draw(st.lists(st.sampled_from(free), unique=True, max_size=30)) if free else [])
        rows, records = rows.long(), self.records(rows.numel())
        for _ in range(2):  # a write that fails is repeated
            self.tier.evict(rows, records)
        self.now[rows] = records
        self.in_slots -= set(rows.tolist())

    @rule()
    def flush(self) -> None:
        rows = torch.tensor(sorted(self.in_slots), dtype=torch.int64)
        self.now[rows] = records = self.records(rows.numel())
        self.tier.write(rows, records)
        self.in_slots.clear()  # evicted unchanged, for all that the tier is told

    @rule(extra=st.dictionaries(st.text(max_size=3), st.integers() | st.none() | st.lists(st.booleans()), max_size=3))
    def commit(self, extra: dict[str, object]) -> None:
        self.flush()
        self.tier.commit(extra)
        self.committed, self.extra = self.now.clone(), extra

    @precondition(lambda self: not self.taken)
    @rule()
    def keep(self) -> None:
        known = [row for row in range(ROWS) if row not in self.in_slots]
        self.tier.keep(torch.tensor(known, dtype=torch.int64))

    @rule(level=st.booleans())
    def crash(self, level: bool) -> None:
        self.tier.close()
        if not level:  # the directory is an ordinary one
            opened(Path(self.temporary.name) / "tier", places=0).close()
        self.tier = opened(Path(self.temporary.name) / "tier", places=self.places, keys=self.keys)
        self.now = self.committed.clone()
        self.in_slots.clear()
        self.taken.clear()
        self.batch = self.moved_batch = 0

    @invariant()
    def rows_that_are_not_in_slots_are_as_written(self) -> None:
        rows = torch.tensor(sorted(set(range(ROWS)) - self.in_slots), dtype=torch.int64)
        assert torch.equal(self.tier.held(rows), self.now[rows])
        assert self.tier.committed_extra == self.extra

    @invariant()
    def no_place_has_two_rows_and_no_row_of_the_slots_has_one(self) -> None:
        codes = self.tier._codes
        in_ram = np.flatnonzero(codes >= IN_RAM)
        places = Counter((codes[in_ram] - IN_RAM).tolist())
        assert set(places.values()) <= {1}
        assert all(place < self.places for place in places)
        assert not set(in_ram.tolist()) & self.in_slots

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close()
            self.temporary.cleanup()


class AtLength(AgainstATensor):
    """The same, more often."""


AgainstATensor.TestCase.settings = settings(max_examples=5, stateful_step_count=25, deadline=None)
TestAgainstATensor = AgainstATensor.TestCase
AtLength.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAtLength = pytest.mark.slow(AtLength.TestCase)


def test_rows_leave_ram_by_key_and_then_by_how_long_they_have_been_there(tmp_path: Path) -> None:
    tier = opened(tmp_path, places=4, keys=True)
    tier.evict(torch.tensor([2, 0, 1, 4]), torch.ones(4, LAYOUT.width))  # keys 2, 0, 1, 1
    tier.evict(torch.tensor([5, 8]), torch.ones(2, LAYOUT.width))  # keys 2, 2
    assert tier.rows_written == 2
    tier.held(torch.tensor([2, 4, 5, 8]))
    assert (tier.ram_rows_read, tier.rows_read) == (4, 0)
    tier.held(torch.tensor([0, 1]))
    assert (tier.ram_rows_read, tier.rows_read) == (4, 2)
    tier.close()


def test_rows_that_a_batch_took_make_room_once_it_is_moved(tmp_path: Path) -> None:
    tier = opened(tmp_path, places=3)
    tier.evict(torch.tensor([1, 2, 3]), torch.ones(3, LAYOUT.width))
    tier.take(torch.tensor([1, 2]), 0)
    tier.evict(torch.tensor([4, 5]), torch.ones(2, LAYOUT.width))  # one place for two rows
    assert tier.rows_written == 2  # row 3, whose place row 4 has, and row 5
    tier.moved(0)
    tier.evict(torch.tensor([6, 7]), torch.ones(2, LAYOUT.width))
    assert tier.rows_written == 2
    tier.close()


def test_a_commit_writes_each_changed_row_once(tmp_path: Path) -> None:
    tier = opened(tmp_path, places=10)
    tier.evict(torch.arange(10), torch.ones(10, LAYOUT.width))
    tier.commit({})
    tier.commit({})
    assert tier.rows_written == 10
    tier.evict(torch.arange(20, 30), torch.ones(10, LAYOUT.width))  # the others leave without a write
    assert tier.rows_written == 10
    tier.close()


@pytest.mark.parametrize("places", [0, 1000])
def test_one_thread_reads_rows_while_another_evicts(tmp_path: Path, places: int) -> None:
    rows, wrong = 4000, []
    tier = opened(tmp_path, places=places, rows=rows)
    even, odd = torch.arange(0, rows, 2), torch.arange(1, rows, 2)
    tier.write(even, torch.full((even.numel(), LAYOUT.width), -1.0))
    done = threading.Event()

    def evict() -> None:
        number = 0
        while not done.is_set():
            number += 1
            some = odd[torch.randperm(odd.numel())[:700]]
            tier.evict(some, torch.full((700, LAYOUT.width), float(number)))
            if not places and number % 3 == 0:  # where no other thread writes
                tier.commit({})

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        for batch in range(150):
            some = even[torch.randperm(even.numel())[:500]]
            found = tier.held(some)
            tier.take(some, batch)
            if not bool((found == -1).all()):
                wrong.append(found)
            tier.moved(batch)
            if places:
                tier.write(some, torch.full((500, LAYOUT.width), -1.0))
    finally:
        done.set()
        thread.join()
    assert not wrong
    tier.close()
