"""Loops of a plan: survey the batch's rows, choose slots, assign them, release the rows, and fill an empty cache."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.announce_loops import Part
from systems.freq_cache.planner.index import (
    ABSENT,
    BATCH,
    KEY,
    LATER,
    NEXT,
    NONE,
    PLACE,
    ROW,
    absent_until,
    at,
    in_key_queue,
    is_changed,
    latest_use,
    place_at,
    position_in,
    row_in,
    set_changed,
    set_latest_use,
    slot_count,
    written_by,
)
from systems.freq_cache.planner.order import queue_of_batch, queue_of_key
from systems.freq_cache.planner.queues import is_empty, pop, push

Int32s = NDArray[np.int32]

_FAR, _NEAR = 96, 24
"""How many elements ahead a loop asks for memory: for what an element leads to, and for what that leads to."""


class Turn(NamedTuple):
    """The number of the batch that is planned and of that announced last. `changes`: the former will be trained."""

    batch: int
    newest: int
    changes: bool


class Distinct(NamedTuple):
    """A batch, or one part of it: its distinct rows in the order of the ring, and its ids. Loops write all arrays.

    Attributes:
        begin, end: The positions of their uses.
        first: How many distinct rows the parts before this one have.
        rows: The rows, int32 `[u]`.
        missed: Whether each is absent, bool `[u]`.
        occurrences: How many ids ask for each, int32 `[u]`, zeros at first; or empty, then nobody counts.
        absent: The positions of absent rows, int32 `[u]`, of which `survey` returns how many are set.
        absent_rows: The absent rows, likewise.
        after: The batch that writes each of these back, or `NONE`, likewise.
        slots: The slot of each once the batch has its slots, int32 `[u]`; below 0 if a row has none.
        loose: Slots that wait for a queue when the rows are released, int32 `[u]`; `release` returns how many are set.
        queue: The number of the queue that each of these joins, int32 `[u]`.
        inverse: The number of every id's row, int32 `[n]`: within the part until the survey, then within the batch.
        slot_of_id: The slot of every id, int32 `[n]`.
    """

    begin: int
    end: int
    first: int
    rows: Int32s
    missed: NDArray[np.bool_]
    occurrences: Int32s
    absent: Int32s
    absent_rows: Int32s
    after: Int32s
    slots: Int32s
    loose: Int32s
    queue: Int32s
    inverse: Int32s
    slot_of_id: Int32s

    @classmethod
    def room(cls, rows: int, inverse: Int32s, *, counts: bool) -> "Distinct":
        """Room for a batch of so many distinct rows, of which `part` gives each part its share."""
        arrays: dict[str, Any] = {name: np.empty(rows, np.int32) for name in cls._fields[3:-2]}
        arrays |= {"missed": np.empty(rows, np.bool_), "occurrences": np.zeros(rows if counts else 0, np.int32)}
        slot_of_id = np.empty(inverse.size, np.int32)
        return cls(begin=0, end=0, first=0, **arrays, inverse=inverse, slot_of_id=slot_of_id)

    def part(self, part: Part) -> "Distinct":
        """The share of one part; views."""
        by_row: dict[str, Any] = {name: getattr(self, name)[part.rows] for name in self._fields[3:-2]}
        by_id: dict[str, Any] = {name: getattr(self, name)[part.ids] for name in self._fields[-2:]}
        begin, end = part.segment
        return Distinct(begin=begin, end=end, first=part.rows.start, **by_row, **by_id)


class Moves(NamedTuple):
    """Rows that enter the cache and rows that leave it.

    Attributes:
        slots: The slots that rows enter, int32 `[m]`: free ones first, then those of rows that leave.
        free: How many are free.
        back_rows: Receives the changed rows that leave, int32 `[m]`, of which `assign` returns how many are set.
        back_slots: Receives their slots, likewise.
    """

    slots: Int32s
    free: int
    back_rows: Int32s
    back_slots: Int32s

    def part(self, share: slice) -> "Moves":
        """Some of the rows that enter; views."""
        free = max(self.free - share.start, 0)
        return Moves(self.slots[share], free, self.back_rows[share], self.back_slots[share])


@compiled
def survey(distinct, index):
    """Find out which rows a part of a batch asks for and which of them are absent, before anything moves.

    Returns the number of absent rows.
    """
    inverse, occurrences = distinct.inverse, distinct.occurrences
    if occurrences.size:
        for i in range(inverse.size):
            occurrences[np.uint64(inverse[i])] += 1
    if distinct.first:
        for i in range(inverse.size):
            inverse[i] += distinct.first
    misses = 0
    begin = distinct.begin
    for position in range(begin, distinct.end):
        place, row = index.ring[at(position, PLACE)], index.ring[at(position, ROW)]
        distinct.rows[position - begin] = row
        distinct.missed[position - begin] = place < 0
        if place < 0:
            distinct.absent[misses] = position
            distinct.absent_rows[misses] = row
            distinct.after[misses] = written_by(place)
            misses += 1
    return misses


@compiled
def choose(slots, levels, used, index, order, turn):
    """Choose a slot for each row that enters: free ones in order, then those of victims.

    `slots` receives them, and `levels`, as long, is room to work in. `used`: slots that are not free. Returns the
    number of free slots among the chosen ones and the new `lowest` of the order.
    """
    lowest = order.lowest
    wanted = slots.size
    free = min(wanted, slot_count(index) - used)
    for i in range(free):
        slots[i] = used + i
    found = free
    while found < wanted:
        lowest = _candidates(slots, levels, found, lowest, order, turn)
        for i in range(found, wanted):
            if i + _FAR < wanted:
                prefetch(index.slots, at(slots[i + _FAR], ROW))
            slot, level = slots[i], levels[i]
            if level < order.levels:
                next_use = index.slots[at(slot, NEXT)]
                if next_use >= 0:  # hit or announced since it was queued
                    set_latest_use(index, slot, latest_use(index, slot), 0)
                    batch = index.ring[at(next_use, BATCH)]
                    if batch != turn.batch:  # rows of the batch in hand are queued when it is released
                        push(order.queues, queue_of_batch(order, batch), slot)
                    continue
                if not order.fixed and index.slots[at(slot, KEY)] - order.base > level:
                    lowest = min(lowest, _push_by_key(index, order, slot))
                    continue
            slots[found] = slot
            found += 1
    return free, lowest


@compiled
def _candidates(slots, levels, taken, lowest, order, turn):
    """Take slots off the queues, best victim first, until `slots` is full. Returns the new `lowest`.

    `taken` slots are there already. `levels` receives the numbers of the queues that the others come from.
    """
    while taken < slots.size and lowest < order.levels:
        if is_empty(order.queues, lowest):
            lowest += 1
        else:
            slots[taken] = pop(order.queues, lowest)
            levels[taken] = lowest
            taken += 1
    batch = turn.newest
    while taken < slots.size and batch > turn.batch:
        queue = queue_of_batch(order, batch)
        if is_empty(order.queues, queue):
            batch -= 1
        else:
            slots[taken] = pop(order.queues, queue)
            levels[taken] = queue
            taken += 1
    return lowest


@compiled
def _push_by_key(index, order, slot):
    queue = queue_of_key(order, index.slots[at(slot, KEY)])
    push(order.queues, queue, slot)
    return queue


@compiled
def assign(distinct, keys, moves, index, order, turn):
    """Do all that is left for a part of a batch once its slots are chosen.

    `keys` are those of the part's rows, or of its absent rows if the order has fixed keys. Returns how many rows are to
    be written back, how many slots wait for a queue, and how many ids ask for a row that was absent.
    """
    back = _replace(distinct, keys, moves, index, order, turn)
    loose = _release(distinct, keys, index, order, turn)
    return back, loose, _spread(distinct)


@compiled
def _replace(distinct, keys, moves, index, order, turn):
    """Give absent rows their slots, and let the rows that were in them leave. Returns how many are written back."""
    where, slots, ring = index
    absent, entered = distinct.absent, moves.slots
    back = 0
    for i in range(entered.size):
        if i + _FAR < entered.size:
            prefetch(slots, at(entered[i + _FAR], ROW))
        if i + _NEAR < entered.size:
            ahead = entered[i + _NEAR]
            prefetch(where, row_in(index, ahead))
            prefetch(where, ring[at(absent[i + _NEAR], ROW)])
            if slots[at(ahead, NEXT)] >= 0:
                prefetch(ring, at(slots[at(ahead, NEXT)], ROW))
        slot = entered[i]
        if i >= moves.free:
            next_use, gone = slots[at(slot, NEXT)], row_in(index, slot)
            place = ABSENT
            if is_changed(index, slot):
                place = absent_until(turn.batch)
                moves.back_rows[back] = gone
                moves.back_slots[back] = slot
                back += 1
            if next_use >= 0:
                ring[at(next_use, PLACE)] = place
                where[np.uint64(gone)] = place_at(index, latest_use(index, slot))
            else:
                where[np.uint64(gone)] = place
        row = ring[at(absent[i], ROW)]
        ring[at(absent[i], PLACE)] = slot
        slots[at(slot, ROW)] = row
        slots[at(slot, NEXT)] = absent[i]
        set_latest_use(index, slot, position_in(index, where[np.uint64(row)]), 0)
        where[np.uint64(row)] = slot
        if order.fixed:
            slots[at(slot, KEY)] = keys[i]
    return back


@compiled
def _release(distinct, keys, index, order, turn):
    """Hand the place of each row on to its next use, or take the row out of the ring.

    Returns how many slots wait for a queue.
    """
    where, slots, ring = index
    begin = distinct.begin
    found = 0
    for position in range(begin, distinct.end):
        if position + _NEAR < distinct.end:
            prefetch(slots, at(max(ring[at(position + _NEAR, PLACE)], 0), ROW))
            ahead = ring[at(position + _NEAR, LATER)]
            if ahead >= 0:
                prefetch(ring, at(ahead, ROW))
        slot = ring[at(position, PLACE)]
        later = ring[at(position, LATER)]
        distinct.slots[position - begin] = slot
        place = slot
        if slot < 0 and turn.changes:
            place = absent_until(turn.batch)  # an overflow batch writes its absent rows back itself
        if later >= 0:
            ring[at(later, PLACE)] = place
        if slot < 0:
            if later < 0:
                where[np.uint64(ring[at(position, ROW)])] = place
            continue
        slots[at(slot, NEXT)] = later
        queued = in_key_queue(index, slot)
        latest = latest_use(index, slot) if later >= 0 else NONE
        if not order.fixed:
            slots[at(slot, KEY)] = keys[position - begin]
        if not queued:
            distinct.loose[found] = slot
            if later >= 0:
                distinct.queue[found] = queue_of_batch(order, ring[at(later, BATCH)])
            else:
                distinct.queue[found] = queue_of_key(order, slots[at(slot, KEY)])
                queued = 1
            found += 1
        set_latest_use(index, slot, latest, queued)
        if turn.changes:
            set_changed(index, slot, ring[at(position, ROW)])
    return found


@compiled
def _spread(distinct):
    """Write down the slot of every id. Returns how many ids ask for a row that was absent."""
    misses = 0
    for i in range(distinct.inverse.size):
        number = np.uint64(distinct.inverse[i] - distinct.first)
        distinct.slot_of_id[i] = distinct.slots[number]
        misses += distinct.missed[number]
    return misses


@compiled
def fill(rows, keys, index, order):
    """Put rows into slots 0, 1, ... of an empty cache. The new `lowest` of the order is 0."""
    for slot in range(rows.size):
        index.where[np.uint64(rows[slot])] = slot
        index.slots[at(slot, ROW)] = rows[slot]
        index.slots[at(slot, KEY)] = keys[slot]
        set_latest_use(index, slot, NONE, 1)
        _push_by_key(index, order, slot)
