"""A bound: what looking ahead is worth.

Cached rows are in two kinds of queues: by next use where it is known, else by rank. All queues are linked lists. A
cached row is a node; behind the nodes stand the queues, first one per rank, then one per batch. `after` of a queue is
its first node, `before` its last, the queue itself if it is empty. Nodes of no row form a list by `after` alone. A node
moves from the queue of its rank to that of a batch only when it would leave otherwise.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.traces.next_use import Uses, next_uses
from suite.simulate.traces.rates import rates_of
from suite.simulate.traces.trace import Int32s, Seen
from systems.freq_cache.compiled import compiled, prefetch_ahead

NONE = -1
HELD, FREE, LOWEST, FARTHEST = range(4)
"""Entries of the state: cached rows; the first free node; no row is queued by a lower rank, none by a later batch."""


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


class WindowedModel(CacheModel):
    """A cache that knows the next `look_ahead` batches, and how often every row is used, but not when.

    Of the rows that are not in the window, the one of the lowest rate leaves, of equals the one used longest ago; if
    all are in it, the one used last. All rows of a batch are resident together; with a batch larger than the cache, the
    best of its rows and of those there stay. `warm=frequent` starts with the most frequent rows, of equals the lower
    ones. Every batch is worth the same, counted or not. Rates are `Trace.frequencies`, compared exactly: the law of a
    synthetic stream, the counts of a dataset. (Counts of what is yet to come would tell which of many rare rows return
    at all, and that is what a window is to find out.)

    What it bounds: on a given trace a worse rule may be lucky, so no rule with a window is a bound. This one is the
    best on average among all that see the same window, if batches are independent draws from one law under which rows
    of higher frequency are the likelier ones. A row in the window is surely used before one that is not, so between
    these, and inside the window, `BeladyModel`'s argument holds. Of two rows outside it let x be the likelier, and pair
    each future batch that has x without y with the same batch with y for x: who keeps x and who keeps y then fare alike
    in turn, but for the futures by which x is likelier. There who kept x has a miss less, and a row more in the cache
    is worth one miss at most. Without a window this is rule A0 of Aho, Denning and Ullman, "Principles of optimal page
    replacement", JACM 18(1), 1971. Where the law drifts, a policy that follows it can do better. With a window over the
    whole replay this is `belady`, if both start empty and every batch is counted.

    `look_ahead` counts batches behind the one in hand: `freq_cache[look_ahead=16]` knows 15.

    Memory: 12 B per row of the tables with the finding of distinct rows, `NextUses`, and 15 B per slot and per id of a
    batch; while it is built also the frequencies, 8 B per row.
    """

    variants = {
        "look_ahead": ("16", "0", "1", "2", "4", "8", "32", "64", "128", "256", "512", "1024"),
        "warm": ("frequent", "off"),
    }
    source = "Aho, Denning and Ullman, JACM 18(1), 1971, and Belady's rule inside the window"

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._uses = next_uses(setting.trace, setting.span.stop)
        rates = rates_of(setting.trace)
        nodes = self.slots + setting.trace.batch_lookups
        before = np.arange(nodes + rates.rows.size + self._uses.never + 1, dtype=np.int32)
        after = before.copy()
        after[:nodes] += 1
        self._window = Window(
            node_of=np.full(rates.of.size, NONE, np.int32),
            row=np.zeros(nodes, np.int32),
            use=np.zeros(nodes, self._uses.first.dtype),
            changed=np.zeros(nodes, np.bool_),
            before=before,
            after=after,
            state=np.array([0, 0, rates.rows.size, 0], np.int64),
            rank=rates.of,
            ranks=rates.rows.size,
            look_ahead=int(parameters["look_ahead"]),
        )
        if parameters["warm"] == "frequent":
            _warm_up(self._window, self._uses.first, *rates.bar(self.slots))

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows = batch.unique[0]
        missed = np.empty(rows.size, np.bool_)
        back = _replace(self._window, rows, self._uses.of(batch.number), self.slots, batch.number, missed)
        if tally is not None:
            tally.rows_fetched += self.count(batch, missed, tally)
            tally.rows_written_back += back


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
def _replace(window, rows, uses, slots, now, missed):
    """Make the rows of a batch resident, if there are slots for all of them, else the best of all rows.

    `missed` receives whether each was absent. Returns rows written back.
    """
    misses = 0
    for i in range(rows.size):
        prefetch_ahead(window.node_of, rows, i)
        prefetch_ahead(window.rank, rows, i)
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
def _warm_up(window, first, bar, left):
    """Fill an empty cache with all rows of ranks above the bar, and `left` of those at it, the lower rows."""
    for row in range(first.size):
        rank = window.rank[row]
        if rank > bar or (rank == bar and left > 0):
            left -= rank == bar
            _enter(window, row, first[row], -1, False)
