"""In which order rows leave: queues of slots, one for every key and one for every announced batch.

The best victims are the slots that no announced batch needs: they are in the queues of keys, and the lowest key is
first. The slots that an announced batch needs next are in the queue of that batch, and the last batch is first. A slot
is in one queue at most. The row of a slot in a key's queue may have been announced, or have got a higher key, since the
slot was queued: that is noticed when its turn comes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.compiled import compiled, inlined
from systems.freq_cache.planner import queues
from systems.freq_cache.planner.policy import LEVELS
from systems.freq_cache.planner.queues import EMPTY, Queues

Int32s = NDArray[np.int32]

_MOST_LEVELS = 1 << 16


class Order(NamedTuple):
    """All queues, and how they are numbered: first those of keys, then those of batches.

    Attributes:
        queues: The queues.
        slots: The slots that there are in all.
        fixed: The key of a row never changes.
        levels: How many queues are of keys. Queue q is of key `base + q`.
        base: The key of queue 0, which lower keys share.
        depth: How many queues are of batches. Queue `levels + batch % depth` is of the announced batch of that number.
        lowest: Every queue of a key below this number is empty.
        highest: No key of a slot is higher, in a queue or out of it.
    """

    queues: Queues
    slots: int
    fixed: bool
    levels: int
    base: int
    depth: int
    lowest: int
    highest: int = 0

    @classmethod
    def empty(cls, *, slots: int, fixed: bool) -> "Order":
        """Queues for the keys of built-in policies and for two batches, without slots."""
        depth = 2
        made = queues.empty_queues(queues=LEVELS + depth, slots=slots)
        return cls(made, slots=slots, fixed=fixed, levels=LEVELS, base=0, depth=depth, lowest=LEVELS)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.queues)

    def joined_by(self, slots: Int32s, numbers: Int32s) -> "Order":
        """The same order with slots at the backs of the queues of these numbers, int32 each."""
        return self._replace(lowest=_enqueue(slots, numbers, self))

    def clear_batch(self, batch: int) -> None:
        queues.clear(self.queues, self.levels + batch % self.depth)

    def for_batches(self, batches: int, announced: Iterable[int]) -> "Order":
        """The same order with a queue for each of so many batches. `announced`: the numbers of those there are."""
        if batches <= self.depth:
            return self
        depth = 2 * batches
        old = self.queues.ends.reshape(-1, 2)
        ends = np.full((self.levels + depth, 2), EMPTY, np.int32)
        ends[: self.levels] = old[: self.levels]
        for batch in announced:
            ends[self.levels + batch % depth] = old[self.levels + batch % self.depth]
        return self._replace(depth=depth, queues=queues.rearranged(self.queues, ends.reshape(-1), self.slots))

    def for_keys(self, keys: Sequence[Int32s]) -> "Order":
        """The same order with a queue for each key from the lowest of these to the highest.

        Empty queues of other keys are left out; if that does not suffice, there are more queues. Keys may span
        65,536 values: rows whose keys are further below the highest are of equal rank from here on.
        """
        some = [these for these in keys if these.size]
        if not some:
            return self
        least, highest = min(int(these.min()) for these in some), max(int(these.max()) for these in some)
        highest = max(highest, self.highest)  # slots that wait for their batch keep keys, and are queued by them later
        top = self.base + self.levels
        if highest < top and (self.base <= least or top - least > _MOST_LEVELS):
            return self if highest == self.highest else self._replace(highest=highest)
        old = self.queues.ends.reshape(-1, 2)
        queued = self.base + np.flatnonzero(old[: self.levels, 0] != EMPTY)
        base = max(min([least, *queued[:1].tolist()]), highest - _MOST_LEVELS // 2)
        far = queued[queued <= base]
        if far.size:
            queues.merge(self.queues, int(far[0]) - self.base, int(far[-1]) - self.base)
            queued = queued[far.size - 1 :]
        levels = max(self.levels, min(2 * (highest - base + 1), _MOST_LEVELS))
        ends = np.full((levels + self.depth, 2), EMPTY, np.int32)
        ends[np.maximum(queued - base, 0)] = old[queued - self.base]
        ends[levels:] = old[self.levels :]
        made = queues.rearranged(self.queues, ends.reshape(-1), self.slots)
        return self._replace(queues=made, levels=levels, base=base, lowest=0, highest=highest)


@inlined
def queue_of_key(order, key):
    return max(key - order.base, 0)


@inlined
def queue_of_batch(order, batch):
    return order.levels + batch % order.depth


@compiled
def _enqueue(slots, numbers, order):
    """Put slots into the queues of these numbers. Returns the new `lowest`."""
    lowest = order.lowest
    for i in range(slots.size):
        queues.push(order.queues, numbers[i], slots[i])
        lowest = min(lowest, numbers[i])
    return lowest
