"""Loops over the ids of a batch, of which there is one, and over its distinct rows."""

import numpy as np

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.index import (
    ABSENT,
    BEFORE,
    CHANGED,
    FIELDS,
    FLAGS,
    IN_HAND,
    KEY,
    LAST,
    LOWEST,
    NONE,
    PINS,
    QUEUED,
    ROW,
    TAKEN,
    UNTIL,
    USED,
    absent_until,
    at,
    entry_at,
    queue_up,
    slot_count,
    wait,
    wait_no_longer,
    written_by,
)
from systems.freq_cache.planner.policy import LEVELS
from systems.freq_cache.planner.queues import EMPTY, pop

_FAR, _NEAR = 64, 16
"""How many elements ahead a loop asks for memory: for what an element leads to, and for what that leads to."""


@compiled
def find_distinct(ids, ends, starts, sizes, inverse, room, where, behind):
    """Find the distinct rows of a batch in order of first occurrence, and number its ids by them.

    Meanwhile the location of a row that was seen is its number, from `behind` on; afterwards all are what they were.

    Args:
        ids, ends, starts: As `Ids` has them.
        sizes: Rows of each feature's table, int64 `[features]`.
        inverse: Receives the number of every id's row, int32 `[n]`.
        room: Receives the rows, and how many ids ask for each, in its first two lines, int32 `[3, n]`.
        where: The locations of all rows.
        behind: A number behind all locations.

    Returns:
        How many there are; or `~i` if the i-th id is the first that is outside its table.
    """
    rows, counts, before = room
    found, begin, bad = 0, 0, NONE
    for feature in range(ends.size):
        start, size, end = starts[feature], np.uint64(sizes[feature]), ends[feature]
        for i in range(begin, end):
            if i + _FAR < end:
                prefetch(where, start + ids[i + _FAR])
            if np.uint64(ids[i]) >= size:
                bad = i
                break
            row = np.uint64(start + ids[i])
            location = where[row]
            if location >= behind:
                number = location - behind
                inverse[i] = number
                counts[np.uint64(number)] += 1
                continue
            rows[found] = row
            counts[found] = 1
            before[found] = location
            where[row] = behind + found
            inverse[i] = found
            found += 1
        if bad != NONE:
            break
        begin = end
    for i in range(found):
        if i + _FAR < found:
            prefetch(where, rows[i + _FAR])
        where[np.uint64(rows[i])] = before[i]
    return found if bad == NONE else ~bad


@compiled
def pin(rows, batch, index):
    """Pin the rows of an announced batch until it has been planned: those that are pinned, and new ones while there are
    fewer than slots."""
    where, slots, waiting, state, _ = index
    most = slot_count(index)
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(where, rows[i + _FAR])
        if i + _NEAR < rows.size:
            prefetch(slots, FIELDS * where[np.uint64(rows[i + _NEAR])])
        location = where[np.uint64(rows[i])]
        if location >= most:
            waiting[entry_at(index, location, LAST)] = batch
        elif location >= 0 and slots[at(location, UNTIL)] != NONE:
            slots[at(location, UNTIL)] = batch
        elif state[PINS] < most:
            state[PINS] += 1
            if location >= 0:
                slots[at(location, UNTIL)] = batch
            else:
                where[np.uint64(rows[i])] = wait(index, location, batch)


@compiled
def unpin(rows, batch, index):
    """Take back the pins of an announced batch: rows that are pinned until it are pinned no longer."""
    where, slots, waiting, state, _ = index
    for i in range(rows.size):
        location = where[np.uint64(rows[i])]
        if location >= slot_count(index):
            if waiting[entry_at(index, location, LAST)] == batch:
                where[np.uint64(rows[i])] = wait_no_longer(index, location)
                state[PINS] -= 1
        elif location >= 0 and slots[at(location, UNTIL)] == batch:
            slots[at(location, UNTIL)] = NONE
            state[PINS] -= 1
            if slots[at(location, FLAGS)] & (QUEUED | IN_HAND) == 0:
                queue_up(index, location)


@compiled
def survey(rows, missed, absent, after, index):
    """Find out which rows of a batch are absent, before anything moves, and have the others stay.

    Args:
        rows: The distinct rows, int32 `[u]`.
        missed: Receives whether each is absent, bool `[u]`.
        absent: Receives the absent rows, int32 `[u]`.
        after: Receives the batch that writes each of these back, or `NONE`, likewise.

    Returns:
        How many rows are absent.
    """
    where, slots, waiting, _, _ = index
    found = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(where, rows[i + _FAR])
        if i + _NEAR < rows.size:
            prefetch(slots, FIELDS * where[np.uint64(rows[i + _NEAR])])
        location = where[np.uint64(rows[i])]
        if 0 <= location < slot_count(index):
            missed[i] = False
            slots[at(location, FLAGS)] |= IN_HAND
            continue
        missed[i] = True
        if location >= 0:
            location = waiting[entry_at(index, location, BEFORE)]
        absent[found] = rows[i]
        after[found] = written_by(location)
        found += 1
    return found


@compiled
def choose(victims, found, index):
    """Take slots off the queues until `victims` is full, of which `found` are there, or until the queues are empty.

    The lowest key is first. A slot whose row got a higher key since it was queued, or was used if `USED` is told of it,
    joins the back of the queue of its key. One whose row is pinned or in hand is left out: it is queued when it is no
    longer. Returns how many victims there are.
    """
    slots, state, queues = index.slots, index.state, index.queues
    lowest = state[LOWEST]
    while found < victims.size and lowest < LEVELS:
        front = queues.ends[2 * lowest]
        if front == EMPTY:
            lowest += 1
            continue
        prefetch(slots, FIELDS * queues.store[min(front + _NEAR, queues.store.size - 1)])
        slot = pop(queues, lowest)
        flags = slots[at(slot, FLAGS)]
        slots[at(slot, FLAGS)] = flags & ~QUEUED
        if flags & IN_HAND or slots[at(slot, UNTIL)] != NONE:
            continue
        if flags & USED or slots[at(slot, KEY)] > lowest:
            queue_up(index, slot)
            lowest = min(lowest, slots[at(slot, KEY)])
        else:
            victims[found] = slot
            found += 1
    state[LOWEST] = lowest
    return found


@compiled
def assign(absent, keys, entered, back_rows, back_slots, batch, index):
    """Give absent rows their slots, and let the rows that were in them leave.

    Args:
        absent: The rows that enter, int32 `[m]`.
        keys: Their keys, int32 `[m]`, or empty: `release` has them.
        entered: Their slots, int32 `[m]`.
        back_rows, back_slots: Receive the changed rows that leave, and the slots they leave, int32 `[m]`.
        batch: The batch that is planned.

    Returns:
        How many rows are written back.
    """
    where, slots, waiting, state, _ = index
    back = 0
    for i in range(entered.size):
        if i + _FAR < entered.size:
            prefetch(slots, FIELDS * entered[i + _FAR])
            prefetch(where, absent[i + _FAR])
        if i + _NEAR < entered.size and entered[i + _NEAR] < state[TAKEN]:
            prefetch(where, slots[at(entered[i + _NEAR], ROW)])
        slot, row = entered[i], np.uint64(absent[i])
        if slot < state[TAKEN]:
            gone = slots[at(slot, ROW)]
            where[np.uint64(gone)] = ABSENT
            if slots[at(slot, FLAGS)] & CHANGED:
                where[np.uint64(gone)] = absent_until(batch)
                back_rows[back] = gone
                back_slots[back] = slot
                back += 1
        else:
            state[TAKEN] = slot + 1
        location = where[row]
        slots[at(slot, UNTIL)] = NONE
        if location >= 0:
            slots[at(slot, UNTIL)] = waiting[entry_at(index, location, LAST)]
            wait_no_longer(index, location)
        where[row] = slot
        slots[at(slot, ROW)] = absent[i]
        slots[at(slot, FLAGS)] = IN_HAND
        if keys.size:
            slots[at(slot, KEY)] = keys[i]
    return back


@compiled
def release(rows, keys, found, batch, changes, reinserts, index):
    """Write down the slots of a batch's rows, and queue those that no later batch is known to need.

    Args:
        rows: The distinct rows, int32 `[u]`.
        keys: Theirs, int32 `[u]`, or empty: they are as they were.
        found: Receives the slot of each, int32 `[u]`, below 0 where an overflow batch has none.
        batch: The batch that is planned.
        changes: It is trained.
        reinserts: A slot that is in a queue joins it anew before it leaves, because its row was used.
    """
    where, slots, waiting, state, _ = index
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(where, rows[i + _FAR])
        if i + _NEAR < rows.size:
            prefetch(slots, FIELDS * where[np.uint64(rows[i + _NEAR])])
        row = np.uint64(rows[i])
        slot = where[row]
        if not 0 <= slot < slot_count(index):
            found[i] = NONE
            before = slot if slot < 0 else waiting[entry_at(index, slot, BEFORE)]
            if changes:
                before = absent_until(batch)  # an overflow batch writes its absent rows back itself
            if slot < 0:
                where[row] = before
            elif waiting[entry_at(index, slot, LAST)] > batch:
                waiting[entry_at(index, slot, BEFORE)] = before
            else:
                wait_no_longer(index, slot)
                state[PINS] -= 1
                where[row] = before
            continue
        found[i] = slot
        if keys.size:
            slots[at(slot, KEY)] = keys[i]
        flags = slots[at(slot, FLAGS)] & ~IN_HAND
        if changes:
            flags |= CHANGED
        if flags & QUEUED and reinserts:
            flags |= USED
        slots[at(slot, FLAGS)] = flags
        if slots[at(slot, UNTIL)] == batch:
            slots[at(slot, UNTIL)] = NONE
            state[PINS] -= 1
        if slots[at(slot, UNTIL)] == NONE and flags & QUEUED == 0:
            queue_up(index, slot)


@compiled
def spread(inverse, slots, slot_of_id):
    """Write down the slot of every id."""
    for i in range(inverse.size):
        slot_of_id[i] = slots[np.uint64(inverse[i])]


@compiled
def fill(rows, keys, index):
    """Put rows into slots 0, 1, ... of an empty cache."""
    for slot in range(rows.size):
        index.where[np.uint64(rows[slot])] = slot
        index.slots[at(slot, ROW)] = rows[slot]
        index.slots[at(slot, KEY)] = keys[slot]
        index.slots[at(slot, UNTIL)] = NONE
        queue_up(index, slot)
    index.state[TAKEN] = rows.size
