"""Eviction policies, and the queues of slots by key.

A policy gives every row a key; among rows that no announced batch needs, the lowest is evicted. Keys are small
integers, because the planner has a queue of slots for every key. A policy may round what it counts: two rows whose
frequencies differ by a twentieth are equally good victims.

All queues are in one array, for compiled code, first in, first out. A queue is a list of chunks of the array, each of
which has room for 32 slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import bit_length, compiled, gather, prefetch_ahead

Int32s = NDArray[np.int32]

LEVELS = 512
"""Number of keys, 0 to 511; the key of the count 2^31 is 448."""


class Policy(ABC):
    """Ranking of a cache's rows. Subclasses implement `keys`; the rest has defaults.

    Attributes:
        rows: Number of rows of the policy's arrays, which loops read and write. None: any number.
        fixed: A row's key never changes: `keys` is asked for that of rows that enter.
        reinserts: A row used since it was queued is queued again before eviction, at the end of its key's queue.
        state: Learnt statistic of each row, `[rows]`, saved and loaded with the tables. None: no statistic.
        nbytes: Host bytes of the policy's arrays over all rows.
    """

    rows: int | None = None
    fixed: bool = False
    reinserts: bool = False
    state: NDArray[np.generic] | None = None
    nbytes: int = 0

    @abstractmethod
    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        """Keys of rows that a batch uses, int32 `[n]`, from 0 to 511; a row's key never falls while it is cached.

        Of a `fixed` policy, keys of those of them that enter.

        Args:
            rows: Distinct rows of the batch, int32 `[n]`.
            occurrences: Ids of each row in this batch, int32 `[n]`; zeros for rows that fill an empty cache, for those
                of batches before it that share its backward, and where keys are `fixed`.
            batch: Number of the batch, rising.
            learn: The batch trains. An evaluated batch must not change learnt statistics.
        """

    def keys_of_evicted(self, rows: Int32s) -> Int32s:
        """Keys of rows that have left the slots, int32 `[n]`, by which a level of RAM ranks them. Default: all 0.

        The thread that writes rows back calls this, while the planning thread may be in another method.
        """
        return np.zeros(rows.size, np.int32)

    def best(self, rows: int) -> Int32s:
        """Up to `rows` rows to fill the cache with before the first batch, int32, the best first. Default: none."""
        return np.empty(0, np.int32)


def checked(call: str, found: Int32s, *, most: int, below: int, least: int = 0) -> Int32s:
    """Check and return the result of a policy's method. With a wrong one loops would write beyond their arrays.

    Raises:
        ValueError: it is not an int32 array of one dimension, of `least` to `most` numbers from 0 to `below` - 1.
    """
    if not (isinstance(found, np.ndarray) and found.dtype == np.int32 and found.ndim == 1):
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ValueError(f"{call} returned {what}: give an int32 array of one dimension")
    if not least <= found.size <= most:
        raise ValueError(f"{call} returned {found.size} numbers: give {most if least else f'at most {most}'}")
    if found.size and int(found.view(np.uint32).max()) >= below:  # as an unsigned number, a negative one is the largest
        wrong = found[(found < 0) | (found >= below)][0]
        raise ValueError(f"{call} returned {wrong}: give numbers from 0 to {below - 1}")
    return found


class StaticFrequency(Policy):
    """Rank by how often a row occurs in the training split, known beforehand; 2 B per row. arXiv 2208.05321, 4.2."""

    fixed = True

    def __init__(self, frequencies: Sequence[NDArray[np.int64]]) -> None:
        """Take the accesses per row of each table, int64 `[rows]`, in the order of the tables."""
        self._levels = np.empty(sum(counts.size for counts in frequencies), np.uint16)
        self.rows, self.nbytes = self._levels.size, self._levels.nbytes
        done = 0
        for counts in frequencies:
            if counts.size and int(counts.min()) < 0:
                raise ValueError("frequencies count accesses: they cannot be negative")
            _levels_of(counts, self._levels[done : done + counts.size])
            done += counts.size

    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        return self.keys_of_evicted(rows)

    def keys_of_evicted(self, rows: Int32s) -> Int32s:
        keys = np.empty(rows.size, np.int32)
        gather(self._levels, rows, keys)
        return keys

    def best(self, rows: int) -> Int32s:
        best = np.empty(min(rows, self._levels.size), np.int32)
        _best(self._levels, np.zeros(LEVELS, np.int64), best)
        return best


class LFU(Policy):
    """Rank by occurrences so far, which survive eviction; 2 B per row.

    Counts never decay, as in fbgemm, and saturate at 65,535: such frequent rows are never evicted anyway.
    """

    def __init__(self, rows: int) -> None:
        self.state = np.zeros(rows, np.uint16)
        self.rows, self.nbytes = rows, self.state.nbytes

    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        keys = np.empty(rows.size, np.int32)
        _count(self.state, rows, occurrences, keys, learn)
        return keys

    def keys_of_evicted(self, rows: Int32s) -> Int32s:
        return self.keys(rows, np.zeros_like(rows), batch=0, learn=False)


class LRU(Policy):
    """Rank rows by when they were queued, and those that were used since then once more; no bytes per row.

    That is one queue with reinsertion, which CLOCK is too: Corbato, A Paging Experiment with the Multics System, 1968.
    """

    fixed = reinserts = True

    def keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        return np.zeros(rows.size, np.int32)


@compiled
def level_of(count: int) -> int:
    """The key of a count: itself below 32, then sixteen levels for every doubling."""
    shift: int = max(bit_length(count) - 5, 0)
    return shift * 16 + (count >> shift)


@compiled
def _levels_of(counts, levels):
    for row in range(counts.size):
        levels[row] = level_of(min(counts[row], 2**31))


@compiled
def _best(levels, places, best):
    """Fill `best` with the rows of the highest levels, these first, of equals the lower rows. `places` is room."""
    for row in range(levels.size):
        places[LEVELS - 1 - levels[row]] += 1
    before = 0
    for level in range(LEVELS):
        places[level], before = before, before + places[level]
    for row in range(levels.size):
        place = places[LEVELS - 1 - levels[row]]
        if place < best.size:
            best[place] = row
            places[LEVELS - 1 - levels[row]] += 1


@compiled
def _count(counts, rows, occurrences, keys, learn):
    for i in range(rows.size):
        prefetch_ahead(counts, rows, i)
        row = np.uint64(rows[i])
        count = np.int64(counts[row])
        if learn:
            count = min(count + occurrences[i], np.int64(65_535))
            counts[row] = count
        keys[i] = level_of(count)


_BITS = 5
CHUNK = 1 << _BITS
_WITHIN = CHUNK - 1
EMPTY = -1


class Queues(NamedTuple):
    """All queues.

    Attributes:
        store: The slots in every chunk, int32 `[CHUNK * chunks]`.
        link: The chunk that follows each chunk in its queue or in the list of free chunks, int32 `[chunks + 1]`. The
            last element is the first free chunk.
        ends: Two positions in `store` per queue, that of its front and the one behind its back, int32
            `[2 * queues]`. Both are `EMPTY` if the queue is.
    """

    store: Int32s
    link: Int32s
    ends: Int32s


def empty_queues(*, queues: int, slots: int) -> Queues:
    """Empty queues, with room for each of `slots` slots once."""
    chunks = slots // CHUNK + 2 * min(queues, slots) + 1  # the first and the last of a queue may be partly full
    link = np.arange(1, chunks + 2, dtype=np.int32)
    link[-2], link[-1] = EMPTY, 0
    return Queues(np.zeros(CHUNK * chunks, np.int32), link, np.full(2 * queues, EMPTY, np.int32))


@compiled
def push(queues, queue, slot):
    """Put a slot at the back."""
    store, link, ends = queues
    back = ends[2 * queue + 1]
    if back & _WITHIN == 0 or back == EMPTY:  # the last chunk is full, or there is none
        chunk = link[-1]
        link[-1] = link[chunk]
        link[chunk] = EMPTY
        if back == EMPTY:
            ends[2 * queue] = chunk << _BITS
        else:
            link[(back - 1) >> _BITS] = chunk
        back = chunk << _BITS
    store[back] = slot
    ends[2 * queue + 1] = back + 1


@compiled
def pop(queues, queue):
    """Take the slot at the front of a queue that is not empty."""
    store, link, ends = queues
    front = ends[2 * queue]
    slot = store[front]
    chunk = front >> _BITS
    front += 1
    if front == ends[2 * queue + 1]:
        ends[2 * queue] = EMPTY
        ends[2 * queue + 1] = EMPTY
    elif front & _WITHIN == 0:
        ends[2 * queue] = link[chunk] << _BITS
    else:
        ends[2 * queue] = front
        return slot
    link[chunk] = link[-1]
    link[-1] = chunk
    return slot
