"""Cached rows in two kinds of queues: by next use where it is known, else by rank. All queues are linked lists.

A cached row is a node; behind the nodes stand the queues, first one per rank, then one per batch. `after` of a queue is
its first node, `before` its last, the queue itself if it is empty. Nodes of no row form a list by `after` alone. A node
moves from the queue of its rank to that of a batch only when it would leave otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.traces.next_use import NextUses, Uses
from suite.simulate.traces.rates import Rates
from suite.simulate.traces.trace import Int32s
from systems.freq_cache.compiled import compiled, prefetch

NONE = -1
HELD, FREE, LOWEST, FARTHEST = range(4)
"""Entries of the state: cached rows; the first free node; no row is queued by a lower rank, none by a later batch."""

_FAR = 32


class Window(NamedTuple):
    """A cache that knows the batches up to `look_ahead` behind the one in hand.

    Attributes:
        node_of: Node of each row, `NONE` if it is absent, int32 `[rows]`.
        row: Of each node, int32.
        use: Its next use.
        changed: Whether it was trained since it was fetched, bool.
        before, after: Neighbours of nodes and queues, int32.
        state: `HELD`, `FREE`, `LOWEST` and `FARTHEST`, int64.
        rank: Of each row, int32 `[rows]`.
        ranks: How many there are.
        look_ahead: Batches.
    """

    node_of: Int32s
    row: Int32s
    use: Uses
    changed: NDArray[np.bool_]
    before: Int32s
    after: Int32s
    state: NDArray[np.int64]
    rank: Int32s
    ranks: int
    look_ahead: int


def empty_window(uses: NextUses, rates: Rates, *, nodes: int, look_ahead: int) -> Window:
    """An empty one with room for so many rows."""
    before = np.arange(nodes + rates.rows.size + uses.never + 1, dtype=np.int32)
    after = before.copy()
    after[:nodes] += 1
    return Window(
        node_of=np.full(rates.of.size, NONE, np.int32),
        row=np.zeros(nodes, np.int32),
        use=np.zeros(nodes, uses.first.dtype),
        changed=np.zeros(nodes, np.bool_),
        before=before,
        after=after,
        state=np.array([0, 0, rates.rows.size, 0], np.int64),
        rank=rates.of,
        ranks=rates.rows.size,
        look_ahead=look_ahead,
    )


@compiled
def _link(window, node, now):
    """Queue a node: by its next use if that is in the window, else by its rank."""
    rank = np.int64(window.rank[np.uint64(window.row[node])])
    use = np.int64(window.use[node])
    if use <= now + window.look_ahead:
        queue = window.row.size + window.ranks + use
        window.state[FARTHEST] = max(window.state[FARTHEST], use)
    else:
        queue = window.row.size + rank
        window.state[LOWEST] = min(window.state[LOWEST], rank)
    last = window.before[queue]
    window.before[node], window.after[node] = last, queue
    window.after[last], window.before[queue] = node, node


@compiled
def _unlink(window, node):
    last, following = window.before[node], window.after[node]
    window.after[last], window.before[following] = following, last


@compiled
def _enter(window, row, use, now, changed):
    """Give an absent row a node, and queue it."""
    node = window.state[FREE]
    window.state[FREE] = window.after[node]
    window.state[HELD] += 1
    window.node_of[np.uint64(row)] = node
    window.row[node] = row
    window.use[node] = use
    window.changed[node] = changed
    _link(window, node, now)


@compiled
def _worst(window, now):
    """The node of the lowest rank that is not in the window; if all are in it, one of those used last."""
    nodes, state = window.row.size, window.state
    while state[LOWEST] < window.ranks:
        queue = nodes + state[LOWEST]
        node = window.after[queue]
        if node == queue:
            state[LOWEST] += 1
        elif window.use[node] <= now + window.look_ahead:  # announced since it was queued
            _unlink(window, node)
            _link(window, node, now)
        else:
            return node
    while True:
        queue = nodes + window.ranks + state[FARTHEST]
        if window.after[queue] != queue:
            return window.after[queue]
        state[FARTHEST] -= 1


@compiled
def _shrink(window, keep, now):
    """Have rows leave until so many are left. Returns how many of them were changed."""
    back = 0
    while window.state[HELD] > keep:
        node = _worst(window, now)
        _unlink(window, node)
        back += window.changed[node]
        window.node_of[np.uint64(window.row[node])] = NONE
        window.after[node] = window.state[FREE]
        window.state[FREE] = node
        window.state[HELD] -= 1
    return back


@compiled
def replace(window, rows, uses, slots, now, missed):
    """Make the rows of a batch resident, if there are slots for all of them, else the best of all rows.

    `missed` receives whether each was absent. Returns rows written back.
    """
    misses = 0
    for i in range(rows.size):
        if i + _FAR < rows.size:
            prefetch(window.node_of, rows[i + _FAR])
            prefetch(window.rank, rows[i + _FAR])
        node = window.node_of[np.uint64(rows[i])]
        missed[i] = node == NONE
        misses += missed[i]
        if node != NONE:
            _unlink(window, node)
    back = 0
    if rows.size <= slots:  # rows of the batch are in no queue now: others leave
        back = _shrink(window, slots - misses, now)
    for i in range(rows.size):
        if missed[i]:
            _enter(window, rows[i], uses[i], now, True)
        else:
            node = window.node_of[np.uint64(rows[i])]
            window.use[node] = uses[i]
            window.changed[node] = True
            _link(window, node, now)
    return back + _shrink(window, slots, now)


@compiled
def warm_up(window, first, bar, left):
    """Fill an empty cache with all rows of ranks above the bar, and `left` of those at it, the lower rows."""
    for row in range(first.size):
        rank = window.rank[row]
        if rank > bar or (rank == bar and left > 0):
            left -= rank == bar
            _enter(window, row, first[row], -1, False)
