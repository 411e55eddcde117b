"""Miss-ratio curves: what an LRU cache of any size would miss, from one pass over a trace.

Batch-granular as everything here; see `models/lru.py`. From the size of the largest batch on, a curve is exactly
what a cache misses in which, of the rows used longest ago, the one that occurred first leaves first.
Below it a batch overflows, which the stack knows nothing of. The `lru` of our planner is one queue with reinsertion,
whose misses differ by a few percent.

A sample of the rows gives estimates of the same: spatially hashed sampling, with depths scaled by the share sampled,
and what the sample has too many or too few of taken from the hits of the smallest caches (SHARDS and its adjustment;
Waldspurger, Park, Garthwaite and Ahmad, FAST 2015): misses are those of the sample over its share, and rates divide
them by all distinct rows. The standard error is that of the mean of independent groups of the sample, each with a stack
of its own, corrected for the share of the population that they make up (Cochran, "Sampling Techniques", 1977, 2.7).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from suite.records.command_line import BadOption
from suite.simulate.models.lru import GROUPS, Counts, LruStack, RowSample
from suite.simulate.models.model import Span
from suite.simulate.trace import DistinctRows, Int32s, Int64s, Seen, Trace, replayed
from systems.freq_cache.cache.plan import Ids

LEAST_SAMPLED_ROWS = 1 << 13
"""Rows of each table that its own curve is sampled from, or all rows of smaller tables."""
COUNT_EVERY = 16
"""With a sample, one batch in so many is counted whole, for the distinct rows of a batch."""

_FEWEST_SAMPLED = 64 * GROUPS


@dataclass(frozen=True, eq=False)
class Depths:
    """Accesses by how deep their rows lay in a stack.

    Attributes:
        share: Of the rows, how many belong to the stack.
        total: All accesses, those of rows not on the stack included.
        within: Accesses of each depth and all above, `[depths]`.
    """

    share: float
    total: int
    within: Counts

    def depth(self, slots: int) -> int:
        """Rows of the stack that a cache of so many slots holds."""
        return math.ceil(slots * self.share)

    def missed(self, slots: int) -> float:
        """Estimated accesses that a cache of so many slots misses."""
        reached = min(self.depth(slots), self.within.size)
        return (self.total - (int(self.within[reached - 1]) if reached else 0)) / self.share


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Misses over the size of an LRU cache, of one table or of all together.

    Attributes:
        name: The table, or the trace.
        rows: Rows of the table or tables.
        unique_ids: Distinct rows counted, batch by batch; with a sample, estimated.
        lookups: Ids counted.
        largest_batch: Most distinct rows of a batch, also of those not counted. Smaller caches overflow.
        depths: Of distinct rows of batches.
        groups: `depths` of independent parts of the stack; none where all rows are on it.
    """

    name: str
    rows: int
    unique_ids: int
    lookups: int
    largest_batch: int
    depths: Depths
    groups: tuple[Depths, ...]

    @property
    def share(self) -> float:
        """Share of the rows that were followed; 1: the curve is exact."""
        return self.depths.share

    @property
    def used_rows(self) -> int:
        """Rows used at all, estimated as the rest; a larger cache misses no less."""
        return min(self.rows, round(self.depths.within.size / self.share))

    @property
    def least_slots(self) -> int:
        """Slots that the largest batch takes; a cache has one at least."""
        return max(1, self.largest_batch)

    def holds(self, slots: int) -> bool:
        """Whether every batch fits into so many slots. If not, a real cache does worse than the curve says."""
        return slots >= self.largest_batch

    def misses(self, slots: int) -> int:
        """Distinct rows that were absent when their batch arrived, in a cache of so many slots."""
        return min(round(self.depths.missed(slots)), self.unique_ids)

    def miss_rate(self, slots: int) -> float:
        """Share of the distinct rows that were absent."""
        return self.misses(slots) / max(1, self.unique_ids)

    def error(self, slots: int) -> float:
        """Standard error of `misses`; 0: exact."""
        if not self.groups:
            return 0.0
        estimates = [group.missed(slots) for group in self.groups]
        return float(np.std(estimates, ddof=1)) * math.sqrt((1 - self.share) / len(estimates))


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """Curves of one trace.

    Attributes:
        trace: Its name.
        span: What was replayed and what of it was counted.
        sample: Share of the rows that was asked for; None: all.
        pooled: Of one cache for all tables.
        tables: Of each table with a cache of its own; empty if they were not asked for.
    """

    trace: str
    span: Span
    sample: float | None
    pooled: Curve
    tables: tuple[Curve, ...]

    @property
    def batches(self) -> int:
        """Counted batches."""
        return self.span.stop - self.span.counted_from


def miss_curves(
    trace: Trace,
    span: Span,
    sample: float | None = None,
    per_table: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Curves:
    """Follow every row, or a sample of them, through a span of a trace.

    Memory: exact, 4 B per row to tell rows apart, and 4.25 B per row and 4 B per row used, twice with `per_table` (8 B
    where more than 2^31 ids are counted). That is 3 GB for the 178 M rows of criteo_1tb with `per_table` once 75 M rows
    were used: sample then. With a sample, 4 B per row and 40 B per row of the sample, twice with `per_table`.

    Args:
        trace: What to replay.
        span: What of it, and from which batch on to count.
        sample: Share of the rows to follow. None: all, exactly.
        per_table: Curves of single tables as well. Of small tables more rows are sampled than of others.
        progress: Told after every batch how many are done, and of how many.

    Raises:
        BadOption: the sample is no share, or too small for the tables.
    """
    sizes = np.array([rows for _, rows in trace.tables], np.int64)
    most = (span.stop - span.counted_from) * trace.batch_lookups
    followed = [_Followed([trace.name], sizes.sum(keepdims=True), _sampled(sizes, sample, by_table=False), most)]
    if per_table:
        names = [name for name, _ in trace.tables]
        followed.append(_Followed(names, sizes, _sampled(sizes, sample, by_table=True), most))
    census = _Census(trace.table_starts)
    for seen in replayed(trace, 0, span.stop):
        counted = seen.number >= span.counted_from
        for stacks in followed:
            stacks.access(seen, counted=counted)
        if sample is not None and counted:
            census.count(seen.ids)
        progress(seen.number + 1, span.stop)
    pooled, *tables = (curve for stacks in followed for curve in stacks.curves(census))
    return Curves(trace=trace.name, span=span, sample=sample, pooled=pooled, tables=tuple(tables))


def _sampled(sizes: Int64s, share: float | None, *, by_table: bool) -> RowSample | None:
    """A sample of all rows alike, or with enough rows of each table; None: all rows are followed."""
    if share is None:
        return None
    if not 0 < share <= 1:
        raise BadOption(f"--sample: {share:g} is out of range, it must be above 0 and at most 1")
    least = LEAST_SAMPLED_ROWS / sizes if by_table else np.zeros(sizes.size)
    sample = RowSample(sizes, np.clip(least, share, 1), by_table=by_table)
    if not by_table and not sample.sizes.all():
        enough = min(1.0, _FEWEST_SAMPLED / int(sizes.sum()))
        raise BadOption(f"--sample: {share:g} of {sizes.sum():,} rows is too few to tell an error: give {enough:.2g}")
    return sample


class _Census:
    """Counts of all rows beside a sample: ids of each table, and its distinct rows in one batch of `COUNT_EVERY`."""

    def __init__(self, table_starts: Int64s) -> None:
        self._starts = table_starts
        self._lookups = np.zeros(table_starts.size, np.int64)
        self._distinct: list[Int64s] = []
        self._batches = 0

    def count(self, ids: Ids) -> None:
        """A batch that counts."""
        lengths = np.diff(ids.ends, prepend=0)
        self._lookups += lengths
        if self._batches % COUNT_EVERY == 0:
            rows = np.unique((ids.values + np.repeat(ids.starts, lengths)).astype(np.int32))
            self._distinct.append(np.diff(np.searchsorted(rows, self._starts), append=rows.size))
        self._batches += 1

    def figures(self, *, pooled: bool) -> Int64s:
        """Estimated distinct rows, ids and most distinct rows of a batch, int64 `[tables, 3]`, or of all, `[1, 3]`."""
        distinct, lookups = np.array(self._distinct), self._lookups
        if pooled:
            distinct, lookups = distinct.sum(axis=1, keepdims=True), lookups.sum(keepdims=True)
        unique = np.rint(distinct.mean(axis=0) * self._batches).astype(np.int64)
        return np.stack((unique, lookups, distinct.max(axis=0)), axis=1)


class _Followed:
    """All rows of a trace, or a sample of them, on a stack for each curve, and with a sample on one for each group.

    Args:
        names: Of the curves.
        rows: Rows of each curve, int64 `[curves]`.
        sample: Its strata are the groups of each curve.
        most: Distinct rows of batches that may be counted in all.
    """

    def __init__(self, names: Sequence[str], rows: Int64s, sample: RowSample | None, most: int) -> None:
        self._names = names
        self._rows = rows
        self._sample = sample
        groups = np.empty(0, np.int64) if sample is None else sample.sizes
        sizes = rows if sample is None else groups.reshape(-1, GROUPS).sum(axis=1)
        self._stacks, self._groups = ([LruStack(size, most=most) for size in of.tolist()] for of in (sizes, groups))
        self._distinct = DistinctRows(int(groups.sum()))

    def access(self, seen: Seen, *, counted: bool) -> None:
        """A batch."""
        if self._sample is None:
            _access(self._stacks, *seen.unique, counted=counted)
            return
        members = self._sample.of(seen.ids)
        rows, occurrences = self._distinct.of(Ids(members, np.array([members.size]), np.zeros(1, np.int64)))
        for stacks in (self._stacks, self._groups):
            _access(stacks, rows, occurrences, counted=counted)

    def curves(self, census: _Census) -> Iterator[Curve]:
        """One for each name; the census has counts of all rows where not all are followed."""
        for place, (name, rows, stack) in enumerate(zip(self._names, self._rows.tolist(), self._stacks, strict=True)):
            depths = _depths(stack, rows)
            groups = self._groups[place * GROUPS : (place + 1) * GROUPS] if depths.share < 1 else []
            unique, lookups, largest = stack.unique_ids, stack.lookups, stack.largest_batch
            if depths.share < 1:
                unique, lookups, largest = census.figures(pooled=self._rows.size == 1)[place].tolist()
            yield Curve(
                name=name,
                rows=rows,
                unique_ids=unique,
                lookups=lookups,
                largest_batch=largest,
                depths=depths,
                groups=tuple(_depths(group, rows) for group in groups),
            )


def _access(stacks: Sequence[LruStack], rows: Int32s, occurrences: Int32s, *, counted: bool) -> None:
    """Give each stack its rows of a batch; rows are numbered through, stack after stack."""
    sizes = np.array([stack.rows for stack in stacks], np.int64)
    starts = sizes.cumsum() - sizes
    of = np.searchsorted(starts + sizes, rows, side="right")
    by_stack = np.argsort(of, kind="stable")
    ends = np.bincount(of, minlength=len(stacks)).cumsum()
    for stack, start, mine in zip(stacks, starts.tolist(), np.split(by_stack, ends[:-1]), strict=True):
        stack.access(rows[mine] - np.int32(start), occurrences[mine], counted=counted)


def _depths(stack: LruStack, rows: int) -> Depths:
    """Depths in a stack of `rows` rows, or of a sample of them."""
    return Depths(stack.rows / rows, stack.unique_ids, np.cumsum(stack.hits, out=stack.hits))  # in place: may be many
