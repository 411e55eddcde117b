"""The planner's loops.

What the arrays mean:

- `where[row]`: the latest occurrence of a row among the announced batches, as `slots + position` in the ring; of a row
  in none of them its slot, or how it is absent: `ABSENT`, or `ABSENT - 1 - batch` if that batch writes it back.
- `ring[at(position, field)]`: one distinct row of one announced batch. A row's occurrences are chained by `NEXT`, and
  the earliest holds its slot (or how it is absent) in `SLOT`.
- `of[at(slot, field)]`: of every slot its `ROW`, its `KEY`, its `FLAGS`, and in `HEAD` the position of its next
  occurrence, or `NONE`.
- Queues: one per key, for slots that no announced batch needs; behind them one per announced batch, for slots needed
  next by that batch. A slot is in one of them at most. One in a key's queue may have been hit or announced since: that
  is noticed when its turn comes.

A store that misses the processor's caches stalls all behind it: what a loop will write it asks for ahead of time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, inlined, prefetch
from systems.freq_cache.queues import EMPTY, pop, push

ABSENT = -1
NONE = -1

ROW, SLOT, NEXT, WHEN = 0, 1, 2, 3
KEY, HEAD, FLAGS = 1, 2, 3
FIELDS = 4
QUEUED, DIRTY = 1, 2
"""Flags of a slot: is in a key's queue; its row changed since it was last written back."""

_FAR, _NEAR = 96, 24
"""How many elements ahead a loop asks for memory: for what an id leads to, and for what that leads to."""


class Index(NamedTuple):
    """Where every row is, and `of[at(slot, field)]`: a slot's row, key, next occurrence and flags, side by side."""

    where: NDArray[np.int32]
    of: NDArray[np.int32]

    @classmethod
    def empty(cls, *, rows: int, slots: int) -> Index:
        """That of a cache without rows."""
        of = np.zeros((slots, FIELDS), np.int32)
        of[:, HEAD] = NONE
        return cls(np.full(rows, ABSENT, np.int32), of.reshape(-1))

    def every(self, field: int) -> NDArray[np.int32]:
        """A field of all slots, a view."""
        return self.of.reshape(-1, FIELDS)[:, field]


class Order(NamedTuple):
    """How queues are numbered: `key - base` below `levels`, then `levels + batch % depth`; none is below `lowest`."""

    levels: int
    base: int
    depth: int
    lowest: int


@compiled
def at(position, field):
    """Where a field of the ring, or of a slot, is. Unsigned: numba would make room for counting from the end."""
    return np.uint64(FIELDS * position + field)


@compiled
def outside(ids, ends, sizes):
    """Where the first id is that its table does not have, or NONE."""
    done = 0
    for feature in range(ends.size):
        for i in range(done, ends[feature]):
            if not 0 <= ids[i] < sizes[feature]:
                return i
        done = ends[feature]
    return NONE


@compiled
def announce(ids, begins, starts, index, ring, inverse, begin, now):
    """Enter distinct ids of some features of a batch from position `begin` on. Returns how many there are.

    The ids of a feature begin where `begins` says, and end where those of the next do. `inverse` counts from 0.
    """
    where, slots = index.where, index.of.size // FIELDS
    end = begin
    for feature in range(starts.size):
        start = starts[feature]
        stop = begins[feature + 1]
        for i in range(begins[feature], stop):
            if i + _FAR < stop:
                prefetch(where, start + ids[i + _FAR])
            row = np.uint64(start + ids[i])
            latest = where[row] - slots
            if begin <= latest < end:
                inverse[i] = latest - begin
                continue
            ring[at(end, ROW)] = row
            ring[at(end, SLOT)] = latest + slots
            ring[at(end, NEXT)] = NONE
            ring[at(end, WHEN)] = now
            where[row] = slots + end
            inverse[i] = end - begin
            end += 1
    return end - begin


@compiled
def touch(where, ids, begins, starts, first):
    """Read what ids from number `first` on lead to. Returns nothing of meaning: what matters is where memory is then.

    Another thread may write there: what is read may be of before or after.
    """
    read = 0
    for feature in range(starts.size):
        for i in range(max(begins[feature], first), begins[feature + 1]):
            read += where[np.uint64(starts[feature] + ids[i])]
    return read


@compiled
def link(index, ring, found, begin, count):
    """Move entries from `found` on down to `begin` on, and tell the earlier occurrence of each, else its slot."""
    where, slots = index.where, index.of.size // FIELDS
    for i in range(count):
        if i + _FAR < count:
            ahead = ring[at(found + i + _FAR, SLOT)]
            if ahead >= slots:
                prefetch(ring, FIELDS * (ahead - slots))
            else:
                prefetch(index.of, FIELDS * max(ahead, 0))
            if found != begin:
                prefetch(where, ring[at(found + i + _FAR, ROW)])
        if found != begin:
            for field in range(FIELDS):
                ring[at(begin + i, field)] = ring[at(found + i, field)]
            where[np.uint64(ring[at(begin + i, ROW)])] = slots + begin + i
        latest = ring[at(begin + i, SLOT)]
        if latest >= slots:
            ring[at(latest - slots, NEXT)] = begin + i
        elif latest >= 0:
            index.of[at(latest, HEAD)] = begin + i


@compiled
def count(inverse, counts):
    """Add up how often each distinct row of a batch occurs in it."""
    for i in range(inverse.size):
        counts[np.uint64(inverse[i])] += 1


@compiled
def survey(ring, begin, end, rows, missed, missing):
    """The rows of a batch, whether each is absent, and the positions of those that are.

    Returns the number of these and the last batch to write one of them back.
    """
    misses = 0
    after = NONE
    for position in range(begin, end):
        slot = ring[at(position, SLOT)]
        rows[position - begin] = ring[at(position, ROW)]
        missed[position - begin] = slot < 0
        if slot < 0:
            missing[misses] = position
            misses += 1
            after = max(after, ABSENT - 1 - slot)
    return misses, after


@compiled
def _candidates(queues, order, lowest, newest, now, out, levels, taken):
    """Take slots off the queues, best victim first, until `out` is full. Returns the lowest key that may be queued.

    `levels` receives the queues that they come from.
    """
    while taken < out.size and lowest < order.levels:
        if queues.ends[2 * lowest] == EMPTY:
            lowest += 1
        else:
            out[taken] = pop(queues, lowest)
            levels[taken] = lowest
            taken += 1
    batch = newest
    while taken < out.size and batch > now:
        queue = order.levels + batch % order.depth
        if queues.ends[2 * queue] == EMPTY:
            batch -= 1
        else:
            out[taken] = pop(queues, queue)
            levels[taken] = queue
            taken += 1
    return lowest


@inlined
def _queue_of_key(index, order, slot):
    return max(index.of[at(slot, KEY)] - order.base, 0)


@compiled
def _queue_by_key(index, queues, order, lowest, slot):
    queue = _queue_of_key(index, order, slot)
    push(queues, queue, slot)
    return min(lowest, queue)


@compiled
def choose(wanted, fixed, index, ring, queues, order, slots, levels, used, begin, end, newest, now):
    """Find a slot for each of `wanted` rows: free ones, then those of victims. `slots` receives them, `levels` is room.

    Returns the number of free ones, and the lowest key that may be queued.
    """
    lowest = order.lowest
    free = min(wanted, index.of.size // FIELDS - used)
    for i in range(free):
        slots[i] = used + i
    found = free
    while found < wanted:
        lowest = _candidates(queues, order, lowest, newest, now, slots, levels, found)
        for i in range(found, wanted):
            if i + _FAR < wanted:
                prefetch(index.of, FIELDS * slots[i + _FAR])
            slot, level, head = slots[i], levels[i], index.of[at(slots[i], HEAD)]
            if level < order.levels:
                if head >= 0:  # hit or announced since it was queued
                    index.of[at(slot, FLAGS)] &= ~QUEUED
                    if not begin <= head < end:  # rows of the batch in hand are queued when it is released
                        push(queues, order.levels + ring[at(head, WHEN)] % order.depth, slots[i])
                    continue
                if not fixed and index.of[at(slot, KEY)] - order.base > level:
                    lowest = _queue_by_key(index, queues, order, lowest, slots[i])
                    continue
            slots[found] = slots[i]
            found += 1
    return free, lowest


@compiled
def replace(missing, slots, free, keys, fixed, index, ring, back_rows, back_slots, now):
    """Give missing rows their slots, of which the first `free` are free, and let the victims in the others go.

    The arrays are of these rows. `back_rows` and `back_slots` receive what is to be written back. Returns how many.
    """
    back = 0
    for i in range(missing.size):
        if i + _FAR < missing.size:
            prefetch(index.of, FIELDS * slots[i + _FAR])
        if i + _NEAR < missing.size:
            ahead = slots[i + _NEAR]
            if index.of[at(ahead, HEAD)] >= 0:
                prefetch(ring, FIELDS * index.of[at(ahead, HEAD)])
            else:
                prefetch(index.where, index.of[at(ahead, ROW)])
        slot = slots[i]
        if i >= free:
            head, gone = index.of[at(slot, HEAD)], np.uint64(index.of[at(slot, ROW)])
            state = ABSENT
            if index.of[at(slot, FLAGS)] & DIRTY:
                state = ABSENT - 1 - now
                back_rows[back] = gone
                back_slots[back] = slots[i]
                back += 1
            if head >= 0:
                ring[at(head, SLOT)] = state
            else:
                index.where[gone] = state
        ring[at(missing[i], SLOT)] = slots[i]
        index.of[at(slot, ROW)] = ring[at(missing[i], ROW)]
        index.of[at(slot, FLAGS)] = 0
        if fixed:
            index.of[at(slot, KEY)] = keys[i]
    return back


@compiled
def release(begin, end, keys, fixed, index, ring, order, slot_of_unique, loose, into, now, changes):
    """Let the rows of a planned batch at some positions go, each to its next use or out of the ring.

    `slot_of_unique` and `keys` are of these rows. `loose` receives the slots that are in no queue, `into` the queue of
    their next use or of their key; both have room for all. Returns how many there are.
    """
    found = 0
    for position in range(begin, end):
        if position + _NEAR < end:
            later = ring[at(position + _NEAR, NEXT)]
            if later >= 0:
                prefetch(ring, FIELDS * later)
            else:
                prefetch(index.where, ring[at(position + _NEAR, ROW)])
            prefetch(index.of, FIELDS * max(ring[at(position + _NEAR, SLOT)], 0))
        slot = ring[at(position, SLOT)]
        behind = ring[at(position, NEXT)]
        slot_of_unique[position - begin] = slot
        state = slot
        if slot < 0 and changes:
            state = ABSENT - 1 - now  # an overflow batch writes its absent rows back itself
        if behind >= 0:
            ring[at(behind, SLOT)] = state
        else:
            index.where[np.uint64(ring[at(position, ROW)])] = state
        if slot < 0:
            continue
        index.of[at(slot, HEAD)] = behind
        if not fixed:
            index.of[at(slot, KEY)] = keys[position - begin]
        flags = index.of[at(slot, FLAGS)]
        if not flags & QUEUED:
            loose[found] = slot
            if behind >= 0:
                into[found] = order.levels + ring[at(behind, WHEN)] % order.depth
            else:
                into[found] = _queue_of_key(index, order, slot)
                flags |= QUEUED
            found += 1
        if changes:
            flags |= DIRTY
        index.of[at(slot, FLAGS)] = flags
    return found


@compiled
def enqueue(slots, into, queues, order):
    """Put slots into queues. Returns the lowest key that is queued."""
    lowest = order.lowest
    for i in range(slots.size):
        push(queues, into[i], slots[i])
        lowest = min(lowest, into[i])
    return lowest


@compiled
def fill(rows, keys, index, queues, order):
    """Put rows into slots 0, 1, ... of an empty cache."""
    for slot in range(rows.size):
        index.where[rows[slot]] = slot
        index.of[at(slot, ROW)] = rows[slot]
        index.of[at(slot, KEY)] = keys[slot]
        index.of[at(slot, FLAGS)] = QUEUED
        _queue_by_key(index, queues, order, 0, slot)


@compiled
def withdraw(begin, end, index, ring, queues, order):
    """Forget an announced batch, the earliest first, as if it had never come. Returns the lowest queued key."""
    lowest = order.lowest
    for position in range(begin, end):
        row = ring[at(position, ROW)]
        if index.where[row] < index.of.size // FIELDS:
            continue  # withdrawn with an earlier batch
        slot = ring[at(position, SLOT)]
        index.where[row] = slot
        if slot < 0:
            continue
        index.of[at(slot, HEAD)] = NONE
        if not index.of[at(slot, FLAGS)] & QUEUED:
            index.of[at(slot, FLAGS)] |= QUEUED
            lowest = _queue_by_key(index, queues, order, lowest, slot)
    return lowest


@compiled
def spread(slot_of_unique, missed, inverse, out):
    """The slot of every id of a batch. Returns how many ids ask for a row that was absent."""
    lookups = 0
    for i in range(inverse.size):
        unique = np.uint64(inverse[i])
        out[i] = slot_of_unique[unique]
        lookups += missed[unique]
    return lookups
