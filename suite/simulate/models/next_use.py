"""When every row is used next: a backward pass over a trace, made once for all cache sizes."""

import numpy as np
from numpy.typing import NDArray

from suite.simulate.trace import FAR, Trace, made_ahead
from systems.freq_cache.compiled import compiled, prefetch

Uses = NDArray[np.unsignedinteger]
"""Numbers of batches: uint16 where they fit, else uint32."""


class NextUses:
    """Next uses of the rows of batches 0 to `stop` of a trace.

    Memory: 2 B per row of the tables and per distinct row of each batch; 4 B from 65,536 batches on.

    Args:
        trace: Read once, backwards.
        stop: Batches that there are; later ones count as never.

    Attributes:
        first: The batch that uses each row first, `[rows]`; `stop`: never.
        of: By batch, the next uses of its distinct rows, `[u]`, in order of first occurrence.
    """

    def __init__(self, trace: Trace, stop: int) -> None:
        kind = np.uint16 if stop <= np.iinfo(np.uint16).max else np.uint32
        self.first: Uses = np.full(trace.rows, stop, kind)
        self.of: list[Uses] = [self.first] * stop
        room: Uses = np.empty(trace.batch_lookups, kind)
        for number, ids in made_ahead(trace, reversed(range(stop)), threads=2):  # here nothing else takes long
            self.of[number] = room[: _go_back(ids.values, ids.ends, ids.starts, number, self.first, room)].copy()


@compiled
def _go_back(values, ends, starts, now, latest, uses):
    """Write the next uses of the distinct rows of batch `now`, the latest that uses them then. Returns how many."""
    found = begin = 0
    for feature in range(starts.size):
        start = starts[feature]
        end = ends[feature]
        for i in range(begin, end):
            if i + FAR < end:
                prefetch(latest, start + values[i + FAR])
            row = np.uint64(start + values[i])
            if latest[row] != now:
                uses[found] = latest[row]
                latest[row] = now
                found += 1
        begin = end
    return found
