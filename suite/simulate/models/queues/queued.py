"""What these policies share: the accesses of a batch, and lists of cached rows.

The policies are defined for single accesses, by the papers that the models name. With batches of one row LRU, S3-FIFO
and SIEVE miss what another simulator of these rules misses (`results/simulate/independent_check.py`). Here all are
brought to batches, by the same rules:

- The distinct rows of a batch are its accesses, in order of first occurrence. A row that occurs several times in a
  batch is accessed once.
- All rows of a batch must be resident together. None of them leaves to make room for another: when the turn of one
  comes, it is passed over and stays where it is.
- Every missing row enters the cache.
- A batch with more distinct rows than there are slots only fills free slots. No row leaves. Its other rows are read and
  written past the cache, once each, and the batch is counted as an overflow.
- Every cached row has been trained. So every row that leaves is written back, with its optimizer state.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.traces.trace import Int32s, Seen
from systems.freq_cache.compiled import compiled, prefetch_ahead

ABSENT = -1
NONE = -1

USED, OWN = range(2)
"""Entries of the state: slots in use, and a number of the policy's own."""

IN_HAND = 128
"""Flag of a cached row: the batch in hand has it. The flags below it are the policy's."""


class Lists(NamedTuple):
    """Lists of nodes, each linked from its oldest node to its newest.

    Attributes:
        older, newer: Neighbours of each node, `NONE` at an end, `[nodes]`.
        oldest, newest: Ends of each list, `NONE` if it is empty, `[lists]`.
        size: Nodes of each list.
        turn: The first node of each list whose turn has not come in the batch in hand.
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
        state: See `USED`.
        place: Node of each row, `ABSENT` if it has none, `[rows]`.
        row: Row of each node, `[nodes]`.
        flags: `IN_HAND` and the policy's own, `[slots]`.
    """

    state: NDArray[np.int64]
    place: Int32s
    row: Int32s
    flags: NDArray[np.uint8]
    lists: Lists


class QueuedRows(CacheModel):
    """A policy that keeps cached rows in queues; it counts the accesses of batches.

    To write: `_cache`, what the policy knows, and `_enter`, a compiled loop that lets batches access their rows, one
    batch after another, and keeps `_cache`. Its arguments:

    - `rows`: distinct rows of each batch, int32 `[u]`, in order of first occurrence;
    - `ends`: where those of each batch end, int64 `[batches]`;
    - `missed`: receives whether each was absent, bool `[u]`;
    - `first`: the number of the first batch;
    - `cache`: `_cache`.
    """

    takes_runs = True
    _cache: tuple[Any, ...]
    _enter: Callable[..., None]

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._place = np.full(setting.trace.rows, ABSENT, np.int32)
        self._state = np.zeros(2, np.int64)

    def _listed(self, *, lists: int, ghosts: int = 0) -> Listed:
        """An empty cache with so many lists, whose nodes are its slots and so many more."""
        nodes = self.slots + ghosts
        older, newer = (np.full(nodes, NONE, np.int32) for _ in range(2))
        oldest, newest, turn = (np.full(lists, NONE, np.int64) for _ in range(3))
        queues = Lists(older, newer, oldest, newest, np.zeros(lists, np.int64), turn)
        return Listed(self._state, self._place, np.zeros(nodes, np.int32), np.zeros(self.slots, np.uint8), queues)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows, _ = batch.unique
        missed = np.empty(rows.size, np.bool_)
        used = self._state[USED]
        self._enter(rows, batch.ends, missed, batch.number, self._cache)
        if tally is None:
            return
        misses = self.count(batch, missed, tally)
        tally.rows_fetched += misses
        tally.rows_written_back += misses - int(self._state[USED] - used)  # what left, and what went past the cache


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
        prefetch_ahead(place, rows, i)
        slot = place[np.uint64(rows[i])]
        if 0 <= slot < flags.size:
            flags[slot] &= IN_HAND - 1
