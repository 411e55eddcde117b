"""What a cache knows of its rows and slots, in int32 arrays, and the queues in which slots wait to be given away.

A *location* says where a row is. From 0 on: in this slot. From the number of slots on: in no slot, but pinned, and what
is left after the number of slots is taken off is an *entry* of the waiting rows. `ABSENT`: in no slot. Below `ABSENT`:
in no slot, and the slow tier does not have its latest values before the write-back of batch `ABSENT - 1 - location`.
While the distinct rows of a batch are found, the location of a row that was seen is its number, behind all entries.

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
CHANGED, QUEUED, USED, IN_HAND = 1, 2, 4, 8
"""Flags: the row changed since it was last written back; the slot is in a queue; the row was used since it joined that
queue; the row is one of the batch that is planned."""
ENTRY = 2
BEFORE, LAST = 0, 1
"""Fields of an entry: the location that the row had before, and the batch until which it is pinned. Of a free entry
`BEFORE` is the next free one."""
TAKEN, PINS, FREE, LOWEST = 0, 1, 2, 3
"""Numbers of the state: slots that hold a row, rows that are pinned, the first free entry, and the lowest key whose
queue may hold a slot."""


class Index(NamedTuple):
    """The arrays. Loops find a field of a slot or of an entry with `at` and `entry_at`.

    Attributes:
        where: The location of every row, int32 `[rows]`.
        slots: The fields of every slot, int32 `[slots * FIELDS]`.
        waiting: The fields of every entry, int32 `[slots * ENTRY]`: no more rows are pinned than there are slots.
        state: int64 `[4]`.
        queues: Of slots whose row no announced batch needs, one for every key.
    """

    where: Int32s
    slots: Int32s
    waiting: Int32s
    state: NDArray[np.int64]
    queues: Queues

    @classmethod
    def empty(cls, *, rows: int, slots: int) -> "Index":
        """The index of a cache without rows."""
        waiting = np.empty((slots, ENTRY), np.int32)
        waiting[:, BEFORE] = np.arange(1, slots + 1)
        return cls(
            np.full(rows, ABSENT, np.int32),
            np.zeros(slots * FIELDS, np.int32),
            waiting.reshape(-1),
            np.zeros(4, np.int64),
            empty_queues(queues=LEVELS, slots=slots),
        )

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.where, self.slots, self.waiting, self.state, *self.queues))

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
def slot_count(index):
    return index.slots.size // FIELDS


@inlined
def entry_at(index, location, field):
    """Where a field of the entry is that the location of a waiting row tells."""
    return np.uint64(ENTRY * (location - slot_count(index)) + field)


@inlined
def absent_until(batch):
    """The location of a row in no slot that this batch writes back."""
    return ABSENT - 1 - batch


@inlined
def written_by(location):
    """The batch that writes an absent row back, or `NONE`."""
    return ABSENT - 1 - location


@compiled
def wait(index, location, batch):
    """Pin a row in no slot until a batch. Returns its location from now on."""
    entry = index.state[FREE]
    found = slot_count(index) + entry
    index.state[FREE] = index.waiting[entry_at(index, found, BEFORE)]
    index.waiting[entry_at(index, found, BEFORE)] = location
    index.waiting[entry_at(index, found, LAST)] = batch
    return found


@compiled
def wait_no_longer(index, location):
    """Free the entry of a waiting row. Returns the location that the row had before."""
    before = index.waiting[entry_at(index, location, BEFORE)]
    index.waiting[entry_at(index, location, BEFORE)] = index.state[FREE]
    index.state[FREE] = location - slot_count(index)
    return before


@compiled
def queue_up(index, slot):
    """Put a slot that is in no queue at the back of that of its key."""
    key = index.slots[at(slot, KEY)]
    push(index.queues, key, slot)
    index.slots[at(slot, FLAGS)] = index.slots[at(slot, FLAGS)] & ~USED | QUEUED
    index.state[LOWEST] = min(index.state[LOWEST], key)
