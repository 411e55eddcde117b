"""What a cache knows of its rows, its slots and the announced batches, in three int32 arrays.

Three numbers have more than one meaning each. This module says what they mean, and only it packs and unpacks them:

- A *place* says where a row is. From 0 on: in this slot. From the number of slots on: in no slot, but announced, and
  what is left after the number of slots is taken off is a position of the ring. `ABSENT`: in no slot. Below `ABSENT`:
  in no slot, and the slow tier does not have its latest values before the write-back of batch `ABSENT - 1 - place`.
- The `ROW` of a slot is `~row`, which is negative, if the row changed since it was last written back.
- The `LATEST` of a slot is twice the position of the row's latest use, and 1 more if the slot is in the queue of a key.

Loops that write to memory far apart ask for it ahead of time: a store that misses the processor's caches stalls all
that comes after it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, inlined

Int32s = NDArray[np.int32]

NONE = -1
"""No position, no batch."""
ABSENT = -1
"""The place of a row that is in no slot."""

FIELDS = 4
ROW, PLACE, LATER, BATCH = 0, 1, 2, 3
"""Fields of a use: its row, the row's place, the position of the row's next use or `NONE`, the batch. `PLACE` is kept
up to date in the earliest use of a row alone."""
KEY, NEXT, LATEST = 1, 2, 3
"""Fields of a slot beside `ROW`: the row's key, the position of its next use or `NONE`, and of its latest one."""
MOST_POSITIONS = 1 << 30
"""Positions that `LATEST` has room for."""


class Index(NamedTuple):
    """The three arrays. Loops find a field of a slot or of a use with `at`.

    Attributes:
        where: The place of every row, int32 `[rows]`. The place of a row in no slot is that of its latest use.
        slots: The fields of every slot, int32 `[slots * FIELDS]`.
        ring: The fields of every use, one distinct row of one announced batch, int32 `[positions * FIELDS]`.
    """

    where: Int32s
    slots: Int32s
    ring: Int32s

    @classmethod
    def empty(cls, *, rows: int, slots: int, positions: int) -> "Index":
        """The index of a cache without rows."""
        fields = np.zeros((slots, FIELDS), np.int32)
        fields[:, NEXT], fields[:, LATEST] = NONE, 2 * NONE
        return cls(np.full(rows, ABSENT, np.int32), fields.reshape(-1), np.empty(FIELDS * positions, np.int32))

    def with_positions(self, positions: int) -> "Index":
        """The same index with room for so many positions, at least as many as it has."""
        ring = np.empty(FIELDS * positions, np.int32)
        ring[: self.ring.size] = self.ring
        return self._replace(ring=ring)

    @property
    def positions(self) -> int:
        return self.ring.size // FIELDS

    @property
    def rows(self) -> Int32s:
        """The row in every slot, int32 `[slots]`."""
        marked = self.slots[ROW::FIELDS]
        return np.maximum(marked, ~marked)

    @property
    def changed(self) -> NDArray[np.bool_]:
        """Whether the row in each slot changed since it was last written back, bool `[slots]`."""
        return self.slots[ROW::FIELDS] < 0

    def mark_written(self, slots: Int32s) -> None:
        """Note that the rows in these slots are as the slow tier has them."""
        marked = self.slots[ROW::FIELDS]
        marked[slots] = np.maximum(marked[slots], ~marked[slots])


@compiled
def at(number, field):
    """Where a field of a slot or of a use is. Unsigned: numba would make room for counting from the end."""
    return np.uint64(FIELDS * number + field)


@inlined
def slot_count(index):
    return index.slots.size // FIELDS


@inlined
def is_announced(index, place):
    """Whether the place is that of a row in no slot that an announced batch uses."""
    return place >= slot_count(index)


@inlined
def position_in(index, place):
    """The position that the place of an announced row tells."""
    return place - slot_count(index)


@inlined
def place_at(index, position):
    """The place of a row in no slot whose latest use is at this position."""
    return slot_count(index) + position


@inlined
def absent_until(batch):
    """The place of a row in no slot that this batch writes back."""
    return ABSENT - 1 - batch


@inlined
def written_by(place):
    """The batch that writes an absent row back, or `NONE`."""
    return ABSENT - 1 - place


@inlined
def row_in(index, slot):
    marked = index.slots[at(slot, ROW)]
    return marked ^ (marked >> 31)


@inlined
def is_changed(index, slot):
    return index.slots[at(slot, ROW)] < 0


@inlined
def set_changed(index, slot, row):
    """Note that the row in this slot, which is `row`, changed."""
    index.slots[at(slot, ROW)] = ~row


@inlined
def latest_use(index, slot):
    """The position of the latest use of the row in a slot, or `NONE`."""
    return index.slots[at(slot, LATEST)] >> 1


@inlined
def in_key_queue(index, slot):
    """1 if the slot is in the queue of a key, else 0."""
    return index.slots[at(slot, LATEST)] & 1


@inlined
def set_latest_use(index, slot, position, queued):
    """`queued`: 1 if the slot is in the queue of a key, else 0."""
    index.slots[at(slot, LATEST)] = 2 * position + queued
