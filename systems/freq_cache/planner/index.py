"""What a cache knows of its rows and slots, in int32 arrays, and the queues in which slots wait to be given away.

A *location* says where a row is. From 0 on: in this slot. From the number of slots on: in no slot, but pinned, in
this *entry*, which has fewer fields. `ABSENT`: in no slot. Below `ABSENT`: in no slot, and the slow tier does not
have its latest values before the write-back of batch `ABSENT - 1 - location`. While the distinct rows of a batch are
found, the location of a row that was seen is its number, behind all entries.

Loops that write to memory far apart ask for it ahead of time: a store that misses the processor's caches stalls all
that comes after it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, inlined
from systems.freq_cache.planner.policy import LEVELS
from systems.freq_cache.planner.queues import Queues, empty_queues, push

Int32s = NDArray[np.int32]

NONE = -1
"""No batch, no entry."""
ABSENT = -1
"""The location of a row that is in no slot."""

FIELDS = 4
ROW, KEY, UNTIL, FLAGS = 0, 1, 2, 3
"""Fields of a slot: its row, the row's key, the batch until which it is pinned or `NONE`, and flags."""
BEFORE = 1
"""Field of an entry, which has `UNTIL` too: the location that its row had before, or the next free entry."""
CHANGED, QUEUED, USED, IN_HAND = 1, 2, 4, 8
"""Flags: the row changed since it was last written back; the slot is in a queue; the row was used since it joined that
queue; the row is one of the batch that is planned, and has to stay."""
SLOTS, TAKEN, PINNED, WAITING, FREE, LOWEST = 0, 1, 2, 3, 4, 5
"""Numbers of the state: slots, those that hold a row, those whose row is pinned, entries that hold a row, the first
free entry, and the lowest key whose queue may hold a slot."""


class Index(NamedTuple):
    """The arrays. Loops find a field of a slot or of an entry with `at`.

    Attributes:
        where: The location of every row, int32 `[rows]`.
        slots: The fields of every slot, and behind them those of every entry, int32 `[(slots + entries) * FIELDS]`.
        state: int64 `[6]`.
        queues: Of slots whose row no announced batch needs, one for every key.
    """

    where: Int32s
    slots: Int32s
    state: NDArray[np.int64]
    queues: Queues

    @classmethod
    def empty(cls, *, rows: int, slots: int) -> "Index":
        """The index of a cache without rows, which has no entries."""
        state = np.array([slots, 0, 0, 0, slots, 0])
        queues = empty_queues(queues=LEVELS, slots=slots)
        return cls(np.full(rows, ABSENT, np.int32), np.zeros(slots * FIELDS, np.int32), state, queues)

    def with_room(self, rows: int) -> "Index":
        """The same index with free entries for so many rows."""
        entries, used = self.behind - int(self.state[SLOTS]), int(self.state[WAITING])
        if used + rows <= entries:
            return self
        added = np.zeros((max(entries, used + rows - entries), FIELDS), np.int32)
        added[:, BEFORE] = np.arange(self.behind + 1, self.behind + 1 + len(added))
        added[-1, BEFORE], self.state[FREE] = self.state[FREE], self.behind
        return self._replace(slots=np.concatenate([self.slots, added.reshape(-1)]))

    @property
    def behind(self) -> int:
        """The number behind all locations."""
        return self.slots.size // FIELDS

    @property
    def entry_bytes(self) -> int:
        return self.slots.nbytes - 4 * FIELDS * int(self.state[SLOTS])

    @property
    def nbytes(self) -> int:
        """Without entries."""
        return sum(array.nbytes for array in (self.where, self.slots, self.state, *self.queues)) - self.entry_bytes

    @property
    def rows(self) -> Int32s:
        """The rows that are in slots, int32, by slot."""
        return self.slots[ROW::FIELDS][: self.state[TAKEN]]

    @property
    def flags(self) -> Int32s:
        """The flags of the slots that hold a row, int32."""
        return self.slots[FLAGS::FIELDS][: self.state[TAKEN]]


@compiled
def at(slot, field):
    """Where a field of a slot is. Unsigned: numba would make room for counting from the end."""
    return np.uint64(FIELDS * slot + field)


@inlined
def absent_until(batch):
    """The location of a row in no slot that this batch writes back."""
    return ABSENT - 1 - batch


@inlined
def written_by(location):
    """The batch that writes an absent row back, or `NONE`."""
    return ABSENT - 1 - location


@compiled
def wait(index, row, location):
    """Give a row in no slot an entry. Returns its location from now on."""
    entry = index.state[FREE]
    index.state[WAITING] += 1
    index.state[FREE] = index.slots[at(entry, BEFORE)]
    index.slots[at(entry, BEFORE)] = location
    index.slots[at(entry, UNTIL)] = NONE
    index.where[np.uint64(row)] = entry
    return entry


@compiled
def wait_no_longer(index, entry):
    """Free an entry. Returns the location that its row had before."""
    before = index.slots[at(entry, BEFORE)]
    index.state[WAITING] -= 1
    index.slots[at(entry, BEFORE)] = index.state[FREE]
    index.state[FREE] = entry
    return before


@compiled
def queue_up(index, slot):
    """Put a slot that is in no queue at the back of that of its key."""
    key = index.slots[at(slot, KEY)]
    push(index.queues, key, slot)
    index.slots[at(slot, FLAGS)] = index.slots[at(slot, FLAGS)] & ~USED | QUEUED
    index.state[LOWEST] = min(index.state[LOWEST], key)
