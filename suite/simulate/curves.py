"""Miss-ratio curves: what an LRU cache of any size would miss, from one pass; and slots divided among tables by them.

Batch-granular as everything here; see `models/lru.py`. From the size of the largest batch on, a curve is exactly
what a cache misses in which, of the rows used longest ago, the one that occurred first leaves first.
Below it a batch overflows, which the stack knows nothing of. The `lru` of our planner is one queue with reinsertion,
whose misses differ by a few percent.

To divide slots, each goes where it saves most misses, on the lower convex hull of each curve: no division is better
where curves are convex (Fox, "Discrete optimization via marginal analysis", Management Science 13(3), 1966). Curves of
LRU need not be; on a hull the steps of a curve that is not are taken whole or, the last one, in part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.records.command_line import BadOption
from suite.simulate.models.lru import LruStack
from suite.simulate.models.model import Span
from suite.simulate.trace import Int32s, Int64s, Trace, replayed

WORTH = 0.02
"""A division is worth it if it saves so large a share of the misses of one cache for all tables."""


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
    within: Int64s

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

    Memory: 4 B per row to tell rows apart, and 4.25 B per row and 8 B per row used, twice with `per_table`. That is
    3.4 GB for the 178 M rows of criteo_1tb with `per_table` once 75 M rows were used.

    Args:
        trace: What to replay.
        span: What of it, and from which batch on to count.
        per_table: Curves of single tables as well.
        progress: Told after every batch how many are done, and of how many.
    """
    pooled = _Depths(trace.name, trace.rows)
    stacks = [_Depths(name, rows) for name, rows in trace.tables] if per_table else []
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
    """Counts how deep the rows of batches lie in an LRU stack."""

    def __init__(self, name: str, rows: int) -> None:
        self._name, self._stack = name, LruStack(rows)
        self._unique_ids = self._lookups = self._largest_batch = 0
        self._hits = np.zeros(rows, np.int64)

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


@dataclass(frozen=True, kw_only=True)
class SlotSplit:
    """Caches of their own for all tables, beside one that they share.

    Attributes:
        slots: To divide.
        cache_rows: Slots by table, where they save most, as `CachedEmbeddingBagCollection` takes them.
        misses: Of each table.
        shared_misses: Of one cache for all tables.
    """

    slots: int
    cache_rows: dict[str, int]
    misses: tuple[int, ...]
    shared_misses: int

    @property
    def unused(self) -> int:
        """Slots that the division has no use for: every row that was used has one."""
        return self.slots - sum(self.cache_rows.values())

    @property
    def answer(self) -> str:
        """Whether it is worth dividing the slots, in one sentence."""
        fewer = self.shared_misses - sum(self.misses)
        saved = fewer / self.shared_misses if self.shared_misses else 0.0
        effect = f"{abs(saved):.1%} {'fewer' if saved >= 0 else 'more'} misses than one shared by all tables"
        if saved >= WORTH:
            return f"Worth it: caches of their own have {effect}."
        if saved > 0:
            return f"Hardly worth it: caches of their own have only {effect}."
        return f"Not worth it: caches of their own have {effect}."


def split_slots(curves: Curves, slots: int) -> SlotSplit:
    """Divide slots among the tables of curves that were made with `per_table`.

    Raises:
        BadOption: there are fewer slots than the largest batches of the tables have distinct rows.
    """
    tables = curves.tables
    least = int(_floors(tables).sum())
    if slots < least:
        raise BadOption(
            f"--split: {slots:,} slots are too few to divide: the largest batches of the {len(tables)} tables have "
            f"{least:,} distinct rows together, give at least as many slots or lower --batch-size"
        )
    given = divide_greedily(tables, slots)
    return SlotSplit(
        slots=slots,
        cache_rows=dict(zip([curve.name for curve in tables], given, strict=True)),
        misses=tuple(curve.misses(count) for curve, count in zip(tables, given, strict=True)),
        shared_misses=curves.pooled.misses(slots),
    )


def divide_greedily(tables: Sequence[Curve], slots: int, *, resident: bool = False) -> tuple[int, ...]:
    """Slots of each table: its largest batch, and the others where they save most; memory 32 B per row of a table.

    With `resident` a table with a slot for every row is no cache: it lies on the device whole and misses nothing.
    """
    floors = _floors(tables)
    own = [_steps(curve) for curve in tables]
    whole = {place: _up_to_all_rows(curve, *own[place]) for place, curve in enumerate(tables) if resident}
    while True:
        given = _filled(floors, [whole.get(place, steps) for place, steps in enumerate(own)], slots)
        # the last step to all rows saves nothing in part: a table that does not get there goes on with its curve
        cut = [n for n, (widths, _) in whole.items() if tables[n].rows - int(widths[-1]) < given[n] < tables[n].rows]
        if not cut:
            return tuple(given.tolist())
        for place in cut:
            del whole[place]


_Steps = tuple[Int64s, NDArray[np.float64]]
"""Widths of the steps of a hull in slots, and misses saved by each slot."""


def _filled(floors: Int64s, steps: Sequence[_Steps], slots: int) -> Int64s:
    """Slots of each table: its floor, and the steps that save most, best first; the last one perhaps in part."""
    owner = np.repeat(np.arange(len(steps)), [widths.size for widths, _ in steps])
    widths = np.concatenate([widths for widths, _ in steps])
    gains = np.concatenate([gains for _, gains in steps])
    best_first = np.argsort(-gains, kind="stable")
    left = slots - int(floors.sum())
    taken = np.diff(np.minimum(np.cumsum(widths[best_first]), left), prepend=0)
    given: Int64s = floors + np.bincount(owner[best_first], taken, minlength=len(steps)).astype(np.int64)
    return given


def _floors(tables: Sequence[Curve]) -> Int64s:
    return np.array([curve.least_slots for curve in tables], np.int64)


def _steps(curve: Curve) -> _Steps:
    """The hull of a curve from its largest batch on.

    It has the levels that falling isotonic regression finds in the hits of each depth (Barlow, Bartholomew, Bremner and
    Brunk, "Statistical Inference under Order Restrictions", 1972).
    """
    from scipy.optimize import isotonic_regression

    first = min(curve.least_slots, curve.used_rows)
    hits = np.pad(curve.within, (1, 0))[first:]
    corners = isotonic_regression(np.diff(hits), increasing=False).blocks if hits.size > 1 else np.zeros(1, np.int64)
    widths = np.diff(corners).astype(np.int64)
    return widths, np.diff(hits[corners]) / widths


def _up_to_all_rows(curve: Curve, widths: Int64s, gains: NDArray[np.float64]) -> _Steps:
    """Steps with one more, to all rows, that saves what the others do not; steps below its slope are part of it."""
    reached = curve.least_slots + int(widths.sum())
    saved = float(curve.misses(reached))
    width, kept = curve.rows - reached, widths.size
    while kept and saved >= gains[kept - 1] * width:
        kept -= 1
        width += int(widths[kept])
        saved += float(gains[kept] * widths[kept])
    if not width:  # the largest batch has all rows
        return np.zeros(1, np.int64), np.zeros(1)
    return np.append(widths[:kept], width), np.append(gains[:kept], saved / width)
