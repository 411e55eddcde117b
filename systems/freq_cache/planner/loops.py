"""Loops over the ids of a batch, of which there is one, and over its distinct rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.index import (
    ABSENT,
    BEFORE,
    CHANGED,
    FIELDS,
    FLAGS,
    IN_HAND,
    KEY,
    LOWEST,
    NONE,
    PINNED,
    QUEUED,
    ROW,
    SLOTS,
    TAKEN,
    UNTIL,
    USED,
    absent_until,
    at,
    queue_up,
    wait,
    wait_no_longer,
    written_by,
)
from systems.freq_cache.planner.policy import LEVELS
from systems.freq_cache.planner.queues import EMPTY, pop

_FAR, _NEAR = 64, 16
"""How many elements ahead a loop asks for memory: for what an element leads to, and for what that leads to."""
_OFTEN = 4
"""From so many ids a row on, most ids of a feature were seen before."""
_ROW_BITS = 2**31 - 1


class Room(NamedTuple):
    """Memory in which the distinct rows of a batch are found.

    Attributes:
        seen: Each row that was seen, and above it the location that it had, int64 `[n + 1]`.
        counted: How many ids asked for each, int32 `[n + 1]`; zeros between two batches.
        rows, counts: The result, int32 `[n + 1]`.
    """

    seen: NDArray[np.int64]
    counted: NDArray[np.int32]
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]


@compiled
def find_distinct(ids, ends, starts, sizes, inverse, room, where, behind):
    """Find the distinct rows of a batch in order of first occurrence, and number its ids by them.

    Meanwhile the location of a row that was seen is its number, from `behind` on; afterwards all are what they were.

    `ids`, `ends` and `starts` are as `Ids` has them, `sizes` the rows of each feature's table, int64 `[features]`.
    `room` receives the rows and how many ids ask for each, `inverse` the number of every id's row, int32 `[n]`. No
    location is from `behind` on. Returns how many rows there are; or `~i` if the i-th id is the first bad one.
    """
    seen, counted, rows, counts = room
    found, begin, bad = 0, 0, NONE
    for feature in range(ends.size):
        part = (ids[begin : ends[feature]], starts[feature], np.uint64(sizes[feature]), inverse[begin : ends[feature]])
        if _OFTEN * sizes[feature] <= ends[feature] - begin:
            found, bad = _find_often(*part, found, seen, counted, where, behind)
        else:
            found, bad = _find_rarely(*part, found, seen, counted, where, behind)
        if bad != NONE:
            bad += begin
            break
        begin = ends[feature]
    for i in range(found):
        if i + _FAR < found:
            prefetch(where, seen[i + _FAR] & _ROW_BITS)
        rows[i], counts[i] = seen[i] & _ROW_BITS, counted[i]
        where[np.uint64(rows[i])] = seen[i] >> 32
        counted[i] = 0
    return found if bad == NONE else ~bad


@compiled
def _find_often(ids, start, size, inverse, found, seen, counted, where, behind):
    """Find the rows of a feature most of whose ids were seen before. Returns how many there are, and a bad id."""
    for i in range(ids.size):
        if np.uint64(ids[i]) >= size:
            return found, i
        row = np.uint64(start + ids[i])
        location = np.int64(where[row])
        number = location - behind
        if location < behind:
            number = found
            seen[np.uint64(number)] = (location << 32) | np.int64(row)
            where[row] = behind + number
            found += 1
        counted[np.uint64(number)] += 1
        inverse[i] = number
    return found, NONE


@compiled
def _find_rarely(ids, start, size, inverse, found, seen, counted, where, behind):
    """The same where many ids are new. It has no branch on that: which way it goes could not be guessed."""
    for i in range(ids.size):
        if i + _FAR < ids.size:
            prefetch(where, start + ids[i + _FAR])
        if np.uint64(ids[i]) >= size:
            return found, i
        row = np.uint64(start + ids[i])
        location = np.int64(where[row])
        new = location < behind
        number = found if new else location - behind
        seen[np.uint64(found)] = (location << 32) | np.int64(row)
        where[row] = behind + number
        counted[np.uint64(number)] += 1
        inverse[i] = number
        found += new
    return found, NONE


@compiled
def pin(rows, batch, index):
    """Pin rows until an announced batch. There is room for all of them among the entries."""
    where, slots, state, _ = index
    pinned = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(where, rows[i + _FAR])
        if i + _NEAR < rows.size:
            prefetch(slots, FIELDS * where[np.uint64(rows[i + _NEAR])])
        location = np.int64(where[np.uint64(rows[i])])
        if location < 0:
            location = wait(index, rows[i], location)
        elif location < state[SLOTS]:
            pinned += slots[at(location, UNTIL)] == NONE
        slots[at(location, UNTIL)] = batch
    state[PINNED] += pinned


@compiled
def unpin(rows, batch, index):
    """Take back the pins of an announced batch: rows that are pinned until it are pinned no longer."""
    where, slots, state, _ = index
    for i in range(rows.size):
        location = where[np.uint64(rows[i])]
        if location < 0 or slots[at(location, UNTIL)] != batch:
            continue
        slots[at(location, UNTIL)] = NONE
        if location >= index.state[SLOTS]:
            where[np.uint64(rows[i])] = wait_no_longer(index, location)
            continue
        state[PINNED] -= 1
        if slots[at(location, FLAGS)] & (QUEUED | IN_HAND) == 0:
            queue_up(index, location)


@compiled
def survey(rows, counts, found, missed, absent, fetched, after, index):
    """Find out which rows of a batch are absent, before anything moves.

    Of the distinct rows, int32 `[u]`, `found` receives the slot of each that has one, and `missed` which are absent,
    bool `[u]`. `absent` and `fetched` receive their numbers and rows, `after` the batch that writes each back.
    Returns how many rows are absent, and how many ids ask for one of these.
    """
    misses = lookups = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(index.where, rows[i + _FAR])
        location = index.where[np.uint64(rows[i])]
        found[i] = location
        missed[i] = not 0 <= location < index.state[SLOTS]
        if missed[i]:
            if location >= 0:
                location = index.slots[at(location, BEFORE)]
            absent[misses], fetched[misses], after[misses] = i, rows[i], written_by(location)
            misses += 1
            lookups += counts[i]
    return misses, lookups


@compiled
def hold(found, index):
    """Keep the rows of the batch in hand where they are, whatever is pinned. `found`: as `survey` left it."""
    for i in range(found.size):
        if 0 <= found[i] < index.state[SLOTS]:
            index.slots[at(found[i], FLAGS)] |= IN_HAND


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
def assign(rows, absent, keys, entered, found, back_rows, back_slots, batch, index):
    """Give absent rows their slots, and let the rows that were in them leave.

    The rows `absent` of the batch, by number, enter the slots `entered`, int32 `[m]` each, with `keys`, or with none:
    `release` has them. `found` receives the slots too. `back_rows` and `back_slots` receive the changed rows that
    leave, and the slots they leave, int32 `[m]`. Returns how many these are.
    """
    where, slots, state, _ = index
    back = 0
    for i in range(entered.size):
        if i + _FAR < entered.size:
            prefetch(slots, FIELDS * entered[i + _FAR])
            prefetch(where, rows[np.uint64(absent[i + _FAR])])
        if i + _NEAR < entered.size and entered[i + _NEAR] < state[TAKEN]:
            prefetch(where, slots[at(entered[i + _NEAR], ROW)])
        slot, row = entered[i], np.uint64(rows[np.uint64(absent[i])])
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
            slots[at(slot, UNTIL)] = slots[at(location, UNTIL)]
            wait_no_longer(index, location)
            state[PINNED] += 1
        where[row] = slot
        found[np.uint64(absent[i])] = slot
        slots[at(slot, ROW)] = row
        slots[at(slot, FLAGS)] = 0
        if keys.size:
            slots[at(slot, KEY)] = keys[i]
    return back


@compiled
def release(rows, keys, found, batch, changes, reinserts, index):
    """Unpin the rows of a batch that no later one is known to need, and queue their slots.

    The batch's distinct rows, int32 `[u]`, have `keys`, or if there are none those of before, and the slots `found`,
    `NONE` where an overflow batch has none. `changes`: the batch is trained. `reinserts`: a slot that is
    in a queue joins it anew before it leaves, because its row was used.
    """
    slots, state = index.slots, index.state
    mark, reinserted, pinned = CHANGED if changes else 0, USED if reinserts else 0, 0
    for i in range(rows.size):
        if i + _NEAR < rows.size:
            prefetch(slots, FIELDS * found[i + _NEAR])
        slot = found[i]
        if not 0 <= slot < index.state[SLOTS]:
            found[i] = NONE
            _pass(slot, rows[i], batch, changes, index)
            continue
        if keys.size:
            slots[at(slot, KEY)] = keys[i]
        until, flags = slots[at(slot, UNTIL)], slots[at(slot, FLAGS)] & ~IN_HAND | mark
        flags |= flags * (USED // QUEUED) & reinserted
        slots[at(slot, FLAGS)] = flags
        pinned -= until == batch
        slots[at(slot, UNTIL)] = until if until > batch else NONE
        if (until <= batch) & (flags & QUEUED == 0):
            queue_up(index, slot)
    state[PINNED] += pinned


@compiled
def _pass(location, row, batch, changes, index):
    """Note that an overflow batch used a row at this location past the cache, and writes it back itself."""
    if location < 0:
        index.where[np.uint64(row)] = absent_until(batch) if changes else location
        return
    if changes:
        index.slots[at(location, BEFORE)] = absent_until(batch)
    if index.slots[at(location, UNTIL)] == batch:
        index.where[np.uint64(row)] = wait_no_longer(index, location)


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
