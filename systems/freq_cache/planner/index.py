"""What a cache knows of its rows and slots, in int32 arrays, and the queues in which slots wait to be given away.

The *location* of a row is its slot, or below 0 if it has none. Then its bits say until which batch it is pinned and, if
the slow tier does not have its latest values yet, which batch writes them back. While the distinct rows of a batch are
found, the location of a row that was seen is its number, behind all slots.

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
"""No batch."""
ABSENT = -(2**31)
"""The location of a row that is in no slot, neither pinned nor written back by a batch."""
UNPINNED, PINS = 0, 255
"""The pin of a row that is not pinned, and how many batches in a row have pins that differ."""
_PIN_BIT, _WRITER_BIT, _WRITERS = 23, 22, 2**22

FIELDS = 4
ROW, KEY, PIN, FLAGS = 0, 1, 2, 3
"""Fields of a slot: its row, the row's key, its pin, and flags."""
CHANGED, QUEUED, USED = 1, 2, 4
"""Flags: the row changed since it was last written back; the slot is in a queue; the row was used since it joined that
queue."""
TAKEN, PINNED, LOWEST = 0, 1, 2
"""Numbers of the state: slots that hold a row, those whose row is pinned, and the lowest key whose queue may hold a
slot."""


class Index(NamedTuple):
    """The arrays. Loops find a field of a slot with `at`.

    Attributes:
        where: The location of every row, int32 `[rows]`.
        slots: The fields of every slot, int32 `[slots * FIELDS]`.
        state: int64 `[3]`.
        queues: Of slots whose row no announced batch needs, one for every key.
    """

    where: Int32s
    slots: Int32s
    state: NDArray[np.int64]
    queues: Queues

    @classmethod
    def empty(cls, *, rows: int, slots: int) -> "Index":
        """The index of a cache without rows."""
        queues = empty_queues(queues=LEVELS, slots=slots)
        where, fields = np.full(rows, ABSENT, np.int32), np.zeros(slots * FIELDS, np.int32)
        return cls(where, fields, np.zeros(3, np.int64), queues)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.where, self.slots, self.state, *self.queues))

    @property
    def rows(self) -> Int32s:
        """The rows that are in slots, int32, by slot."""
        return self.slots[ROW::FIELDS][: self.state[TAKEN]]

    @property
    def flags(self) -> Int32s:
        """The flags of the slots that hold a row, int32."""
        return self.slots[FLAGS::FIELDS][: self.state[TAKEN]]


@inlined
def pin_of(batch):
    """The pin of rows that are pinned until a batch."""
    return 1 + batch % PINS


@inlined
def written_back_by(batch):
    """The location of an absent row that a batch writes back."""
    return ABSENT | 1 << _WRITER_BIT | batch % _WRITERS


def writers_of(locations: Int32s, batch: int) -> Int32s:
    """The last batch before this one that may write each of absent rows back, int32, or `NONE`.

    Numbers of batches are kept up to a multiple of `_WRITERS`. A later batch than the true one does no harm: whoever
    waits for its write-back waits for all before it.
    """
    last = batch - 1 - ((batch - 1 - locations) & (_WRITERS - 1))
    return np.where(locations & (1 << _WRITER_BIT), last, NONE).astype(np.int32)


@inlined
def pin_at(location):
    """The pin of an absent row."""
    return location >> _PIN_BIT & PINS


@inlined
def with_pin(location, pin):
    """The location of an absent row with another pin."""
    return location & ~(PINS << _PIN_BIT) | pin << _PIN_BIT


@compiled
def at(slot, field):
    """Where a field of a slot is. Unsigned: numba would make room for counting from the end."""
    return np.uint64(FIELDS * slot + field)


@compiled
def queue_up(index, slot):
    """Put a slot that is in no queue at the back of that of its key."""
    key = index.slots[at(slot, KEY)]
    push(index.queues, key, slot)
    index.slots[at(slot, FLAGS)] = index.slots[at(slot, FLAGS)] & ~USED | QUEUED
    index.state[LOWEST] = min(index.state[LOWEST], key)
