"""Miss-ratio curves: what an LRU cache of any size would miss, from one pass over a trace.

Batch-granular as everything here; see `models/lru.py`. From the size of the largest batch on, a curve is exactly
what a cache misses in which, of the rows used longest ago, the one that occurred first leaves first.
Below it a batch overflows, which the stack knows nothing of. The `lru` of our planner is one queue with reinsertion,
whose misses differ by a few percent.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suite.simulate.models.lru import Counts, LruStack
from suite.simulate.models.model import Span
from suite.simulate.trace import Int32s, Trace, replayed


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Misses over the size of an LRU cache, of one table or of all together.

    Attributes:
        name: The table, or the trace.
        rows: Rows of the table or tables.
        unique_ids: Distinct rows counted, batch by batch.
        lookups: Ids counted.
        largest_batch: Most distinct rows of a batch, also of those not counted. Smaller caches overflow.
        within: Of these distinct rows, those that lay at each depth of the stack or above, `[rows used]`.
    """

    name: str
    rows: int
    unique_ids: int
    lookups: int
    largest_batch: int
    within: Counts

    @property
    def used_rows(self) -> int:
        """Rows used at all; a larger cache misses no less."""
        return self.within.size

    @property
    def least_slots(self) -> int:
        """Slots that the largest batch takes; a cache has one at least."""
        return max(1, self.largest_batch)

    def holds(self, slots: int) -> bool:
        """Whether every batch fits into so many slots. If not, a real cache does worse than the curve says."""
        return slots >= self.largest_batch

    def misses(self, slots: int) -> int:
        """Distinct rows that were absent when their batch arrived, in a cache of so many slots."""
        reached = min(slots, self.used_rows)
        return self.unique_ids - (int(self.within[reached - 1]) if reached else 0)

    def miss_rate(self, slots: int) -> float:
        """Share of the distinct rows that were absent."""
        return self.misses(slots) / max(1, self.unique_ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """Curves of one trace.

    Attributes:
        span: What was replayed and what of it was counted.
        pooled: Of one cache for all tables.
        tables: Of each table with a cache of its own; empty if they were not asked for.
    """

    span: Span
    pooled: Curve
    tables: tuple[Curve, ...]

    @property
    def batches(self) -> int:
        """Counted batches."""
        return self.span.stop - self.span.counted_from


def miss_curves(
    trace: Trace,
    span: Span,
    *,
    per_table: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Curves:
    """Follow every row through a span of a trace.

    Memory: 4 B per row to tell rows apart, and 4.25 B per row and 4 B per row used, twice with `per_table` (8 B where
    more than 2^31 ids are counted). That is 3 GB for the 178 M rows of criteo_1tb with `per_table` once 75 M rows were
    used.

    Args:
        trace: What to replay.
        span: What of it, and from which batch on to count.
        per_table: Curves of single tables as well.
        progress: Told after every batch how many are done, and of how many.
    """
    most = (span.stop - span.counted_from) * trace.batch_lookups
    pooled = _Depths(trace.name, trace.rows, most=most)
    stacks = [_Depths(name, rows, most=most) for name, rows in trace.tables] if per_table else []
    for seen in replayed(trace, 0, span.stop):
        counted = seen.number >= span.counted_from
        rows, occurrences = seen.unique
        pooled.access(rows, occurrences, counted=counted)
        if stacks:  # rows come table after table
            table = np.searchsorted(trace.table_starts, rows, side="right") - 1
            ends = np.bincount(table, minlength=len(stacks)).cumsum()[:-1]
            own = zip(stacks, trace.table_starts, np.split(rows, ends), np.split(occurrences, ends), strict=True)
            for stack, start, own_rows, own_occurrences in own:
                stack.access(own_rows - np.int32(start), own_occurrences, counted=counted)
        progress(seen.number + 1, span.stop)
    return Curves(
        span=span,
        pooled=pooled.curve(),
        tables=tuple(stack.curve() for stack in stacks),
    )


class _Depths:
    """Counts how deep the rows of batches lie in an LRU stack, of `most` distinct rows of batches in all."""

    def __init__(self, name: str, rows: int, *, most: int) -> None:
        self._name, self._stack = name, LruStack(rows)
        self._unique_ids = self._lookups = self._largest_batch = 0
        self._hits: Counts = np.zeros(rows, np.int32 if most < 1 << 31 else np.int64)  # sums over all depths fit, too

    def access(self, rows: Int32s, occurrences: Int32s, *, counted: bool) -> None:
        """Look up the distinct rows of a batch, in order of first occurrence, then move them to the top."""
        self._largest_batch = max(self._largest_batch, rows.size)
        if counted:
            depths = self._stack.depths(rows)
            self._unique_ids += rows.size
            self._lookups += int(occurrences.sum(dtype=np.int64))
            self._hits[depths[depths >= 0]] += 1  # no two rows are as deep
        self._stack.push(rows)

    def curve(self) -> Curve:
        """The curve that follows; the counts become its own."""
        hits = self._hits[: self._stack.used]
        return Curve(
            name=self._name,
            rows=self._hits.size,
            unique_ids=self._unique_ids,
            lookups=self._lookups,
            largest_batch=self._largest_batch,
            within=np.cumsum(hits, out=hits),  # in place: may be many
        )
