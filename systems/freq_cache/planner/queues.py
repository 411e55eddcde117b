"""First-in-first-out queues of slots, many of them in one array, for compiled code.

A queue is a list of chunks of the array, each of which has room for 32 slots.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled

Int32s = NDArray[np.int32]

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
        ends: Of every queue two positions in `store`, that of its front and the one behind its back, int32
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
