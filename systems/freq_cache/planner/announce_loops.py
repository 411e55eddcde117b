"""Loops over the ids of a batch that is announced, and over the rows of one that is withdrawn."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, prefetch
from systems.freq_cache.planner.index import (
    BATCH,
    KEY,
    LATER,
    NEXT,
    NONE,
    PLACE,
    ROW,
    at,
    in_key_queue,
    is_announced,
    latest_use,
    place_at,
    position_in,
    set_latest_use,
)
from systems.freq_cache.planner.order import queue_of_key
from systems.freq_cache.planner.queues import push
from systems.freq_cache.planner.ring import Segment

_FAR = 96
"""How many elements ahead a loop asks for memory."""


class Features(NamedTuple):
    """Some features of a batch.

    Attributes:
        ids: The ids of the whole batch, int64 `[n]`, each within its table.
        begins: Where in `ids` each feature begins, and where the last one ends, int64 `[features + 1]`.
        starts: The row at which each feature's table starts, int64 `[features]`.
        inverse: Receives the number of every id's row among the distinct ones, from 0 on, int32 `[n]`.
    """

    ids: NDArray[np.int64]
    begins: NDArray[np.int64]
    starts: NDArray[np.int64]
    inverse: NDArray[np.int32]


class Part(NamedTuple):
    """A part of an announced batch: the positions of its uses, its distinct rows among the batch's, and its ids."""

    segment: Segment
    rows: slice
    ids: slice


@compiled
def outside(ids, ends, sizes):
    """As `Ids.outside`."""
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
def announce(features, index, begin, batch):
    """Note the distinct rows of some features of a batch in the ring, from position `begin` on. Returns how many."""
    found = _find_distinct(features, index, begin, batch)
    _link(begin, begin + found, index)
    return found


@compiled
def _find_distinct(features, index, begin, batch):
    """Note each distinct row as a use. Returns how many there are.

    Until a use is linked, the place of its row is its position even if the row has a slot, and the use keeps the place
    that the row had before.
    """
    ids, inverse = features.ids, features.inverse
    where, _, ring = index
    end = begin
    for feature in range(features.starts.size):
        start = features.starts[feature]
        stop = features.begins[feature + 1]
        for i in range(features.begins[feature], stop):
            if i + _FAR < stop:
                prefetch(where, start + ids[i + _FAR])
            row = np.uint64(start + ids[i])
            place = where[row]
            latest = position_in(index, place)
            if begin <= latest < end:
                inverse[i] = latest - begin
                continue
            ring[at(end, ROW)] = row
            ring[at(end, PLACE)] = place
            ring[at(end, LATER)] = NONE
            ring[at(end, BATCH)] = batch
            where[row] = place_at(index, end)
            inverse[i] = end - begin
            end += 1
    return end - begin


@compiled
def _link(begin, end, index):
    """Make each use the next one of the use before it, or of the slot, and the place of a row in a slot that again."""
    where, slots, ring = index
    for i in range(begin, end):
        if i + _FAR < end:
            ahead = ring[at(i + _FAR, PLACE)]
            if is_announced(index, ahead):
                prefetch(ring, at(position_in(index, ahead), ROW))
            elif ahead >= 0:
                prefetch(slots, at(ahead, ROW))
                prefetch(where, ring[at(i + _FAR, ROW)])
        place = ring[at(i, PLACE)]
        if is_announced(index, place):
            ring[at(position_in(index, place), LATER)] = i
        elif place >= 0:
            where[np.uint64(ring[at(i, ROW)])] = place
            latest = latest_use(index, place)
            if latest < 0:
                slots[at(place, NEXT)] = i
            else:
                ring[at(latest, LATER)] = i
            set_latest_use(index, place, i, in_key_queue(index, place))


@compiled
def touch(features, index, first):
    """Read the places of rows that ids from number `first` on ask for, so that the processor's caches have them.

    What is returned has no meaning. Another thread may write these places at the same time.
    """
    read = 0
    for feature in range(features.starts.size):
        for i in range(max(features.begins[feature], first), features.begins[feature + 1]):
            read += index.where[np.uint64(features.starts[feature] + features.ids[i])]
    return read


@compiled
def withdraw(begin, end, index, order):
    """Forget the uses at these positions as if they had never been announced. The earliest batch goes first.

    Slots that only withdrawn batches need go back to the queues of their keys. Returns the new `lowest` of the order.
    """
    where, slots, ring = index
    lowest = order.lowest
    for position in range(begin, end):
        row = ring[at(position, ROW)]
        place = where[np.uint64(row)]
        if is_announced(index, place):
            where[np.uint64(row)] = ring[at(position, PLACE)]
            continue
        if place < 0 or slots[at(place, NEXT)] < 0:
            continue  # withdrawn with an earlier batch
        queued = in_key_queue(index, place)
        slots[at(place, NEXT)] = NONE
        set_latest_use(index, place, NONE, 1)
        if not queued:
            queue = queue_of_key(order, slots[at(place, KEY)])
            push(order.queues, queue, place)
            lowest = min(lowest, queue)
    return lowest
