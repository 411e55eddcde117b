"""When every row is used next: a backward pass over a trace, made once for all cache sizes."""

import numpy as np
from numpy.typing import NDArray

from suite.simulate.trace import FAR, Int64s, Trace, made_ahead, once_per_trace, run_length
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
    """

    def __init__(self, trace: Trace, stop: int) -> None:
        kind = np.uint16 if stop <= np.iinfo(np.uint16).max else np.uint32
        self.first: Uses = np.full(trace.rows, stop, kind)
        self._at_once = at_once = run_length(trace)
        self._runs: dict[int, tuple[Uses, Int64s]] = {}  # by the first batch, with the end of each batch's next uses
        found: Uses = np.empty(at_once * trace.batch_lookups, kind)
        runs = ((number, min(number + at_once, stop)) for number in reversed(range(0, stop, at_once)))
        for first, last, ids in made_ahead(trace, runs, threads=2):  # here nothing else takes long
            ends = np.empty(last - first, np.int64)
            uses = found[: _go_back(ids.values, ids.ends, ids.starts, first, self.first, found, ends)]
            self._runs[first] = uses.copy(), ends

    def of(self, start: int, stop: int | None = None) -> Uses:
        """Next uses of the distinct rows of a batch, `[u]`, in order of first occurrence, or of batches up to `stop`.

        Of several batches only those can be had together that `replayed` gives with `run_length` at once.
        """
        first = start - start % self._at_once
        uses, ends = self._runs[first]
        begin = ends[start - first - 1] if start > first else 0
        return uses[begin : ends[(start if stop is None else stop - 1) - first]]


@once_per_trace
def next_uses(trace: Trace, stop: int) -> NextUses:
    """Those from the last call where that was for as many batches of this trace."""
    return NextUses(trace, stop)


@compiled
def _go_back(values, ends, starts, first, latest, uses, uses_ends):
    """Write the next uses of the distinct rows of batches, from number `first` on. Returns how many there are.

    `latest` is then the first of these batches that uses a row, and `uses_ends` where the next uses of each batch end.
    """
    for batch in range(uses_ends.size - 1, -1, -1):
        begin = ends[batch * starts.size - 1] if batch else 0
        found = begin  # there is room for one of every id
        for feature in range(starts.size):
            start = starts[feature]
            end = ends[batch * starts.size + feature]
            for i in range(begin, end):
                if i + FAR < end:
                    prefetch(latest, start + values[i + FAR])
                row = np.uint64(start + values[i])
                if latest[row] != first + batch:
                    uses[found] = latest[row]
                    latest[row] = first + batch
                    found += 1
            begin = end
        uses_ends[batch] = found
    done = 0
    for batch in range(uses_ends.size):  # close the gaps
        for i in range(ends[batch * starts.size - 1] if batch else 0, uses_ends[batch]):
            uses[done] = uses[i]
            done += 1
        uses_ends[batch] = done
    return done
