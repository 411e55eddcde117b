"""The planner's loops.

What the arrays mean:

- `where[row]`: the slot of a row. Of a row without one its latest occurrence among the announced batches, as `slots +
  position` in the ring; of one in none of them how it is absent: `ABSENT`, or `ABSENT - 1 - batch` if that batch
  writes it back.
- `ring[at(position, field)]`: one distinct row of one announced batch. A row's occurrences are chained by `NEXT`, and
  the earliest holds its slot (or how it is absent) in `SLOT`.
- `of[at(slot, field)]`: of every slot its `ROW`, negative (`~row`) if that changed since it was last written back; its
  `KEY`; in `HEAD` the position of its next occurrence, or `NONE`; and in `LAST` twice that of its latest one, or twice
  `NONE`, and 1 more if it is in a key's queue.
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
from systems.freq_cache.planner.queues import EMPTY, pop, push

ABSENT = -1
NONE = -1

ROW, SLOT, NEXT, WHEN = 0, 1, 2, 3
KEY, HEAD, LAST = 1, 2, 3
FIELDS = 4
QUEUED = 1
MOST_POSITIONS = 1 << 30
"""What `LAST` has room for."""

_FAR, _NEAR = 96, 24
"""How many elements ahead a loop asks for memory: for what an id leads to, and for what that leads to."""


class Index(NamedTuple):
    """Where every row is, and `of[at(slot, field)]`: a slot's row, key, next and latest occurrence, side by side."""

    where: NDArray[np.int32]
    of: NDArray[np.int32]

    @classmethod
    def empty(cls, *, rows: int, slots: int) -> Index:
        """That of a cache without rows."""
        of = np.zeros((slots, FIELDS), np.int32)
        of[:, HEAD], of[:, LAST] = NONE, 2 * NONE
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


@inlined
def _row_in(index, slot):
    row = index.of[at(slot, ROW)]
    return row ^ (row >> 31)


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
def divide(ends, starts, begins, edges):
    """Share the features of a batch out to parts of about as many ids, none of which shares a table with another.

    `begins` receives where the ids of each feature begin and the last of them end; `edges` the first feature of each
    part and the one behind the last, and has room for as many parts as there shall be. Returns how many there are.
    """
    begins[0] = 0
    for feature in range(ends.size):
        begins[feature + 1] = ends[feature]
    most = edges.size - 1
    edges[0] = 0
    parts = share = 1
    for feature in range(1, starts.size):
        if share < most and starts[feature] != starts[feature - 1] and begins[feature] * most >= begins[-1] * share:
            edges[parts] = feature
            parts += 1
            share = max(begins[feature] * most // max(begins[-1], 1), share) + 1
    edges[parts] = starts.size
    return parts


@compiled
def announce(ids, begins, starts, index, ring, inverse, begin, now):
    """Enter distinct ids of some features of a batch from position `begin` on. Returns how many; they are to be linked.

    The ids of a feature begin where `begins` says, and end where those of the next do. `inverse` counts from 0. Until
    an entry is linked, `where` tells its position even if the row has a slot, and `SLOT` what `where` told before.
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
def link(begin, end, index, ring):
    """Tell the earlier occurrence of each entry of it, else its slot, and `where` of that slot again."""
    where, of, slots = index.where, index.of, index.of.size // FIELDS
    for i in range(begin, end):
        if i + _FAR < end:
            ahead = ring[at(i + _FAR, SLOT)]
            if ahead >= slots:
                prefetch(ring, FIELDS * (ahead - slots))
            elif ahead >= 0:
                prefetch(of, FIELDS * ahead)
                prefetch(where, ring[at(i + _FAR, ROW)])
        slot = ring[at(i, SLOT)]
        if slot >= slots:
            ring[at(slot - slots, NEXT)] = i
        elif slot >= 0:
            where[np.uint64(ring[at(i, ROW)])] = slot
            latest = of[at(slot, LAST)]
            if latest < 0:
                of[at(slot, HEAD)] = i
            else:
                ring[at(latest >> 1, NEXT)] = i
            of[at(slot, LAST)] = 2 * i + (latest & QUEUED)


@compiled
def enter(ids, begins, starts, index, ring, inverse, begin, now):
    """Announce and link. Returns the number of distinct ids."""
    found = announce(ids, begins, starts, index, ring, inverse, begin, now)
    link(begin, begin + found, index, ring)
    return found


@compiled
def survey(ring, begin, end, rows, missed, missing, missing_rows, inverse, first, occurrences):
    """The rows at some positions, whether each is absent, and the positions and rows of those that are.

    The ids of `inverse` ask for these rows, of which `first` is the number within the batch: they are numbered within
    it from here on, and counted by row in `occurrences` if that has room.

    Returns the number of absent rows and the last batch to write one of them back.
    """
    if occurrences.size:
        for i in range(inverse.size):
            occurrences[np.uint64(inverse[i])] += 1
    if first:
        for i in range(inverse.size):
            inverse[i] += first
    misses = 0
    after = NONE
    for position in range(begin, end):
        slot, row = ring[at(position, SLOT)], ring[at(position, ROW)]
        rows[position - begin] = row
        missed[position - begin] = slot < 0
        if slot < 0:
            missing[misses] = position
            missing_rows[misses] = row
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
def choose(wanted, fixed, index, ring, queues, order, slots, levels, used, newest, now):
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
                    index.of[at(slot, LAST)] &= ~QUEUED
                    when = ring[at(head, WHEN)]
                    if when != now:  # rows of the batch in hand are queued when it is released
                        push(queues, order.levels + when % order.depth, slots[i])
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
    where, of, all_slots = index.where, index.of, index.of.size // FIELDS
    back = 0
    for i in range(missing.size):
        if i + _FAR < missing.size:
            prefetch(of, FIELDS * slots[i + _FAR])
        if i + _NEAR < missing.size:
            ahead = slots[i + _NEAR]
            prefetch(where, _row_in(index, ahead))
            prefetch(where, ring[at(missing[i + _NEAR], ROW)])
            if of[at(ahead, HEAD)] >= 0:
                prefetch(ring, FIELDS * of[at(ahead, HEAD)])
        slot = slots[i]
        if i >= free:
            head, gone = of[at(slot, HEAD)], _row_in(index, slot)
            state = ABSENT
            if of[at(slot, ROW)] < 0:
                state = ABSENT - 1 - now
                back_rows[back] = gone
                back_slots[back] = slot
                back += 1
            if head >= 0:
                ring[at(head, SLOT)] = state
                where[np.uint64(gone)] = all_slots + (of[at(slot, LAST)] >> 1)
            else:
                where[np.uint64(gone)] = state
        row = ring[at(missing[i], ROW)]
        ring[at(missing[i], SLOT)] = slot
        of[at(slot, ROW)] = row
        of[at(slot, HEAD)] = missing[i]
        of[at(slot, LAST)] = 2 * (where[np.uint64(row)] - all_slots)
        where[np.uint64(row)] = slot
        if fixed:
            of[at(slot, KEY)] = keys[i]
    return back


@compiled
def release(begin, end, keys, fixed, index, ring, order, slot_of_unique, loose, into, now, changes):
    """Let the rows of a planned batch at some positions go, each to its next use or out of the ring.

    `slot_of_unique` and `keys` are of these rows. `loose` receives the slots that are in no queue, `into` the queue of
    their next use or of their key; both have room for all. Returns how many there are.
    """
    of = index.of
    found = 0
    for position in range(begin, end):
        if position + _NEAR < end:
            prefetch(of, FIELDS * max(ring[at(position + _NEAR, SLOT)], 0))
            later = ring[at(position + _NEAR, NEXT)]
            if later >= 0:
                prefetch(ring, FIELDS * later)
        slot = ring[at(position, SLOT)]
        behind = ring[at(position, NEXT)]
        slot_of_unique[position - begin] = slot
        state = slot
        if slot < 0 and changes:
            state = ABSENT - 1 - now  # an overflow batch writes its absent rows back itself
        if behind >= 0:
            ring[at(behind, SLOT)] = state
        if slot < 0:
            if behind < 0:
                index.where[np.uint64(ring[at(position, ROW)])] = state
            continue
        of[at(slot, HEAD)] = behind
        last = of[at(slot, LAST)]
        if behind < 0:
            last = 2 * NONE + (last & QUEUED)
        if not fixed:
            of[at(slot, KEY)] = keys[position - begin]
        if not last & QUEUED:
            loose[found] = slot
            if behind >= 0:
                into[found] = order.levels + ring[at(behind, WHEN)] % order.depth
            else:
                into[found] = _queue_of_key(index, order, slot)
                last |= QUEUED
            found += 1
        of[at(slot, LAST)] = last
        if changes:
            of[at(slot, ROW)] = ~ring[at(position, ROW)]
    return found


@compiled
def spread(slot_of_unique, missed, inverse, first, out):
    """The slot of every id, of which rows from number `first` on are asked for.

    Returns how many ids ask for a row that was absent.
    """
    lookups = 0
    for i in range(inverse.size):
        unique = np.uint64(inverse[i] - first)
        out[i] = slot_of_unique[unique]
        lookups += missed[unique]
    return lookups


@compiled
def settle(
    begin,
    end,
    missing,
    fetch_slots,
    free,
    keys,
    fixed,
    index,
    ring,
    order,
    back_rows,
    back_slots,
    slot_of_unique,
    loose,
    into,
    now,
    changes,
    missed,
    inverse,
    first,
    slot_of_id,
):
    """Replace, release and spread: all that is left to do for some rows of a batch and the ids that ask for them.

    Returns how many rows are to be written back, how many slots are in no queue, and how many ids ask for a row that
    was absent.
    """
    back = replace(missing, fetch_slots, free, keys, fixed, index, ring, back_rows, back_slots, now)
    found = release(begin, end, keys, fixed, index, ring, order, slot_of_unique, loose, into, now, changes)
    return back, found, spread(slot_of_unique, missed, inverse, first, slot_of_id)


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
        index.of[at(slot, LAST)] = 2 * NONE + QUEUED
        _queue_by_key(index, queues, order, 0, slot)


@compiled
def withdraw(begin, end, index, ring, queues, order):
    """Forget an announced batch, the earliest first, as if it had never come. Returns the lowest queued key."""
    of, slots = index.of, index.of.size // FIELDS
    lowest = order.lowest
    for position in range(begin, end):
        row = ring[at(position, ROW)]
        slot = index.where[row]
        if slot >= slots:
            index.where[row] = ring[at(position, SLOT)]
            continue
        if slot < 0 or of[at(slot, HEAD)] < 0:
            continue  # withdrawn with an earlier batch
        of[at(slot, HEAD)] = NONE
        queued = of[at(slot, LAST)] & QUEUED
        of[at(slot, LAST)] = 2 * NONE + QUEUED
        if not queued:
            lowest = _queue_by_key(index, queues, order, lowest, slot)
    return lowest
