"""What LRU, S3-FIFO and SIEVE share: the accesses of a batch, and lists of cached rows.

The three policies are defined for single accesses: S3-FIFO and SIEVE by Algorithm 1 of their papers, which the models
name, S3-FIFO with a choice of how a cache fills. With batches of one row they miss what another simulator of these
rules misses (`results/simulate/independent_check.py`). Here they are brought to batches, by the same rules for all:

- The distinct rows of a batch are its accesses, in order of first occurrence. A row that occurs several times in a
  batch is accessed once.
- All rows of a batch must be resident together. None of them leaves to make room for another: when the turn of one
  comes, it is passed over and stays where it is.
- Every missing row enters the cache.
- A batch with more distinct rows than there are slots only fills free slots. No row leaves. Its other rows are read and
  written past the cache, once each, and the batch is counted as an overflow.
- Every cached row has been trained. So every row that leaves is written back, with its optimizer state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.traces.trace import Int32s, Int64s, Seen
from systems.freq_cache.compiled import compiled, prefetch

ABSENT = -1
NONE = -1

FAR = 32
"""How many rows ahead a loop asks for memory."""

USED, OWN = range(2)
"""Entries of the state: slots in use, and a number of the policy's own."""

IN_HAND = 128
"""Flag of a cached row: the batch in hand has it. The flags below it are the policy's."""


class QueuedRows(CacheModel):
    """A policy that keeps cached rows in queues; it counts the accesses of batches. Subclasses write `_enter`."""

    takes_runs = True

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._place = np.full(setting.trace.rows, ABSENT, np.int32)
        self._state = np.zeros(2, np.int64)

    @property
    def slots(self) -> int:
        return min(self.setting.slots, self.setting.trace.rows)

    @abstractmethod
    def _enter(self, rows: Int32s, ends: Int64s, missed: NDArray[np.bool_], first: int) -> None:
        """Let batches access their rows, one batch after another, and keep the state.

        Args:
            rows: Distinct rows of each, int32 `[u]`, in order of first occurrence.
            ends: Where those of each batch end, int64 `[batches]`.
            missed: Receives whether each was absent, bool `[u]`.
            first: The number of the first batch.
        """

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, _ = batch.unique
        missed = np.empty(rows.size, np.bool_)
        used = self._state[USED]
        self._enter(rows, batch.ends, missed, batch.number)
        if tally is None:
            return
        misses = self.count(batch, missed, tally)
        tally.rows_fetched += misses
        tally.rows_written_back += misses - int(self._state[USED] - used)  # what left, and what went past the cache


class Lists(NamedTuple):
    """Lists of nodes, each linked from its oldest node to its newest.

    Attributes:
        older, newer: Neighbours of each node, `NONE` at an end, int32 `[nodes]`.
        oldest, newest: Ends of each list, `NONE` if it is empty, int64 `[lists]`.
        size: Nodes of each list, int64 `[lists]`.
        turn: The first node of each list whose turn has not come in the batch in hand, int64 `[lists]`.
    """

    older: Int32s
    newer: Int32s
    oldest: NDArray[np.int64]
    newest: NDArray[np.int64]
    size: NDArray[np.int64]
    turn: NDArray[np.int64]


class Listed(NamedTuple):
    """A cache whose slots are nodes of lists.

    Attributes:
        state: See `USED`, int64.
        place: Node of each row, `ABSENT` if it has none, int32 `[rows]`.
        row: Row of each node, int32 `[nodes]`.
        flags: `IN_HAND` and the policy's own, uint8 `[slots]`.
        lists: The queues.
    """

    state: NDArray[np.int64]
    place: Int32s
    row: Int32s
    flags: NDArray[np.uint8]
    lists: Lists


def empty_lists(*, nodes: int, lists: int) -> Lists:
    """So many empty lists for so many nodes."""
    older, newer = (np.full(nodes, NONE, np.int32) for _ in range(2))
    oldest, newest, turn = (np.full(lists, NONE, np.int64) for _ in range(3))
    return Lists(older, newer, oldest, newest, np.zeros(lists, np.int64), turn)


@compiled
def append(lists, which, node):
    """Make a node the newest of a list."""
    back = lists.newest[which]
    lists.older[node] = back
    lists.newer[node] = NONE
    if back == NONE:
        lists.oldest[which] = node
    else:
        lists.newer[back] = node
    lists.newest[which] = node
    lists.size[which] += 1
    if lists.turn[which] == NONE:
        lists.turn[which] = node


@compiled
def append_all(lists, which, node):
    """Append a node and all behind it."""
    for i in range(node, lists.older.size):
        append(lists, which, i)


@compiled
def remove(lists, which, node):
    """Take a node out of its list; if its turn has come, the next one's has."""
    older, newer = lists.older[node], lists.newer[node]
    if older == NONE:
        lists.oldest[which] = newer
    else:
        lists.newer[older] = newer
    if newer == NONE:
        lists.newest[which] = older
    else:
        lists.older[newer] = older
    lists.size[which] -= 1
    if lists.turn[which] == node:
        lists.turn[which] = newer


@compiled
def let_go(rows, place, flags):
    """The batch in hand is done."""
    for i in range(rows.size):
        if i + FAR < rows.size:
            prefetch(place, rows[i + FAR])
        slot = place[np.uint64(rows[i])]
        if 0 <= slot < flags.size:
            flags[slot] &= IN_HAND - 1
