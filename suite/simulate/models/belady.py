"""Bounds: the least that any cache could miss, and what none of any size could hold."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import Bools, CacheModel, Setting, Tally
from suite.simulate.traces.next_use import next_uses
from suite.simulate.traces.rates import rates_of
from suite.simulate.traces.trace import Int32s, Int64s, Seen
from systems.freq_cache.compiled import bit_length, compiled, prefetch_ahead

_BITS = 6
_WITHIN = (1 << _BITS) - 1


class BeladyModel(CacheModel):
    """The fewest rows that any cache of so many slots can miss in the counted batches.

    Variants:

    - `bypass=off`: all rows of a batch are resident together, so it takes a slot for each of them. A batch with more
      distinct rows than slots is read past the cache as with `bypass=on`; so this bounds caches that overflow as well.
    - `bypass=on`: a missing row may be read past the cache: it is a miss, fetched and written back, but takes no slot.
      The bound for systems that do so (fbgemm's caches, fixed hot sets). Never above `off`.
    - `warm=frequent`: the cache starts with the best of the most frequent rows, free of charge: with any that a cache
      might hold which was filled by `Trace.frequencies` (of equally frequent rows, as `StaticFrequency` rounds, any).
      The default: it bounds all that start so, or empty, and any other start does not know the future.
    - `warm=any`: it starts with the best of all rows. Bounds every start; far too low where a replay is short for the
      cache, because it holds rows that nobody could know of.
    - `warm=off`: it starts empty. The bound for caches that do, at most `slots` misses above the others.

    The rule is Belady's ("A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2),
    1966): of the rows that may leave, the one whose next use is farthest does. Why it stays the best with batches: let
    a schedule first differ from the rule by giving up x and keeping y, where y's next use is later. Keep x instead, and
    copy the schedule from there on. If it gives up y before x is used, both hold the same rows again. Otherwise x is a
    hit where the schedule misses it, and the copy, which lacks y from then on, misses y later, once at most: no more
    misses in all. No batch before that use of x has x or y, so the copy holds all that must be resident, whether a
    batch must be or not. Step by step any schedule becomes the rule's without missing more. The start is one more such
    choice, with nothing that must be resident.

    Misses of batches that warm up are not counted. The next use is therefore the next counted one, and a row that a
    batch brings back free of charge before is not worth keeping until then: a copy that lacks it has it again with that
    batch. So this bounds the counted batches alone, whatever a policy did before them.

    Rows fetched are the misses: each missing row is read once. All fetched rows are trained, so they are written back
    when they leave, or past the cache; unchanged rows, of the start, leave for nothing, before others that are as good.
    This schedule never writes back more rows than it misses. Nor can any write back fewer than it misses, less the
    changed rows that it holds more of after the counted batches than before, `slots` at most: in a long replay the
    fewest misses are the fewest bytes.

    No row needs a queue: those next used by the same batch are equally good, so a count by next use tells how many
    leave, and a row is still there if fewer left than joined before it. Memory: 8 B per row of the tables with the
    finding of distinct rows, `NextUses`, with a warm start `Rates`, and 32 B per batch; nothing per slot.
    """

    variants = {"bypass": ("off", "on"), "warm": ("frequent", "any", "off")}
    source = "Belady, IBM Systems Journal 5(2), 1966"
    takes_runs = True

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        span, rows = setting.span, setting.trace.rows
        self._uses = next_uses(setting.trace, span.stop)
        rank, bar = _start_rows(setting, parameters["warm"])
        started, joined, left = np.zeros((3, span.stop + 1), np.int64)
        held, bypass = np.zeros(1, np.int64), parameters["bypass"] == "on"
        ticket, waiting = np.full(rows, -1, np.int32), no_marks(span.stop + 1)
        counts = (started, joined, left, waiting, held)
        self._cache = _Cache(ticket, rank, bar, *counts, span.counted_from, self.slots, bypass)
        if rank.size:
            _start(self._cache, self._uses.first)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows = batch.unique[0]
        missed = np.empty(rows.size, np.bool_)
        uses = self._uses.of(batch.number, batch.number + batch.batches)
        back = _turns(self._cache, batch.number, rows, uses, batch.ends, missed)
        if tally is not None:
            tally.rows_fetched += self.count(batch, missed, tally)
            tally.rows_written_back += back


class CompulsoryModel(CacheModel):
    """A cache with a slot for every row: only rows that were never used before are missed, and none leaves.

    `warm` is as in `BeladyModel`: it starts with as many rows as there are slots, those that the counted batches are
    the first to use, as they come. Never above `belady` with the same start. Memory: 4 B per row of the tables for the
    finding of distinct rows, `NextUses`, and with a warm start `Rates`.
    """

    variants = {"warm": BeladyModel.variants["warm"]}
    source = "first occurrences"
    takes_runs = True

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        self._first = next_uses(setting.trace, setting.span.stop).first
        self._rank, self._bar = _start_rows(setting, parameters["warm"])
        self._free = setting.slots if self._rank.size else 0

    @property
    def slots(self) -> int:
        return self.setting.trace.rows

    def step(self, batch: Seen, tally: Tally | None) -> None:
        if tally is None:
            return
        rows = batch.unique[0]
        numbers = np.arange(batch.number, batch.number + batch.batches, dtype=self._first.dtype)
        missed: Bools = self._first[rows] == numbers.repeat(np.diff(batch.ends, prepend=0))
        if self._free:
            held = np.flatnonzero(missed & (self._rank[rows] >= self._bar))[: self._free]
            self._free -= held.size
            missed[held] = False
        tally.rows_fetched += self.count(batch, missed, tally)


def _start_rows(setting: Setting, warm: str) -> tuple[Int32s, int]:
    """Ranks of the rows, none for a cache that starts empty, and the lowest rank of rows that it may start with."""
    if warm == "off":
        return np.empty(0, np.int32), 0
    rates = rates_of(setting.trace)
    return rates.of, 0 if warm == "any" else rates.lowest_frequent(setting.slots)


class Marks(NamedTuple):
    """A set of numbers whose highest is found in a few steps: 64 bits, one each, lie under one of the next level.

    Words of all levels, int64, one level behind the other, and where each begins, int64 `[levels]`.
    """

    words: NDArray[np.int64]
    begins: NDArray[np.int64]


def no_marks(numbers: int) -> Marks:
    """An empty set, with room for numbers from 0 to below `numbers`. Memory: an eighth of a byte each."""
    sizes = [-(-numbers >> _BITS)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] >> _BITS))
    begins = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    return Marks(np.zeros(sum(sizes), np.int64), begins)


@compiled
def mark(marks, number):
    """Have a number in the set."""
    for level in range(marks.begins.size):
        at = marks.begins[level] + (number >> _BITS)
        before = marks.words[at]
        marks.words[at] = before | (np.int64(1) << (number & _WITHIN))
        if before:
            return
        number >>= _BITS


@compiled
def unmark(marks, number):
    """Take a number out of the set."""
    for level in range(marks.begins.size):
        at = marks.begins[level] + (number >> _BITS)
        marks.words[at] &= ~(np.int64(1) << (number & _WITHIN))
        if marks.words[at]:
            return
        number >>= _BITS


@compiled
def highest(marks):
    """The highest number of a set that is not empty."""
    number = np.int64(0)
    for level in range(marks.begins.size - 1, -1, -1):
        number = (number << _BITS) + bit_length(marks.words[marks.begins[level] + number]) - 1
    return number


class _Cache(NamedTuple):
    """Cached rows by the batch that uses them next; first to join, first to leave.

    Attributes:
        ticket: How many had joined before each row, -1 for a row not met, int32 `[rows]`.
        rank: Of each row, int32 `[rows]`; empty if the cache starts empty.
        bar: The lowest rank of rows that the cache may have started with.
        started: Rows next used by each batch that the cache started with, int64 `[stop + 1]`.
        joined: All rows that joined, int64 `[stop + 1]`.
        left: Rows that left, int64 `[stop + 1]`.
        waiting: Batches that are the next to use a cached row, `stop` standing for never.
        held: Cached rows, int64 `[1]`.
        counted_from: The first counted batch.
        slots: Of the cache.
        bypass: Whether rows may be read past it.
    """

    ticket: Int32s
    rank: Int32s
    bar: int
    started: Int64s
    joined: Int64s
    left: Int64s
    waiting: Marks
    held: Int64s
    counted_from: int
    slots: int
    bypass: bool


@compiled
def _start(cache, first):
    """Start with rows that the counted batches are the first to use, the nearest first.

    Which rows they are is left open until they are used: the first so many of a batch that may be among them.
    """
    for row in range(first.size):
        cache.started[first[row]] += cache.rank[row] >= cache.bar
    cache.started[: cache.counted_from] = 0
    for batch in range(cache.counted_from, cache.started.size - 1):
        new = min(cache.started[batch], cache.slots - cache.held[0])
        cache.started[batch] = cache.joined[batch] = new
        cache.held[0] += new
        if new:
            mark(cache.waiting, batch)
    cache.started[-1] = 0


@compiled
def _find(cache, rows, now, missed):
    """Whether each row of a batch is absent."""
    new = 0
    for i in range(rows.size):
        prefetch_ahead(cache.ticket, rows, i)
        row = np.uint64(rows[i])
        ticket = int(cache.ticket[row])
        if ticket < 0 and new < cache.started[now] and cache.rank[row] >= cache.bar:
            ticket = new
            new += 1
        missed[i] = not cache.left[now] <= ticket < cache.joined[now]


@compiled
def _leave(cache, keep):
    """Have rows leave until so many are left, the one used last first. Returns how many of them were changed."""
    joined, left, held = cache.joined, cache.left, cache.held
    back = 0
    while held[0] > keep:
        farthest = highest(cache.waiting)
        going = min(joined[farthest] - left[farthest], held[0] - keep)
        changed_from = max(left[farthest], cache.started[farthest])
        left[farthest] += going
        held[0] -= going
        if left[farthest] == joined[farthest]:
            unmark(cache.waiting, farthest)
        back += max(0, left[farthest] - changed_from)
    return back


@compiled
def _turns(cache, first, rows, uses, ends, missed):
    """Have batches take their turns. `missed` receives whether each row was absent. Returns rows written back."""
    back = 0
    begin = 0
    for batch in range(ends.size):
        end = ends[batch]
        now = first + batch
        _find(cache, rows[begin:end], now, missed[begin:end])
        back += _turn(cache, rows[begin:end], uses[begin:end], now)
        begin = end
    return back


@compiled
def _turn(cache, rows, uses, now):
    """Have a batch take its turn. Returns rows written back."""
    joined, held, slots = cache.joined, cache.held, cache.slots
    never = joined.size - 1
    if joined[now] > cache.left[now]:
        held[0] -= joined[now] - cache.left[now]
        cache.left[now] = joined[now]
        unmark(cache.waiting, now)
    others = slots if cache.bypass or rows.size > slots else slots - rows.size  # that may stay beside it
    back = _leave(cache, others)
    for i in range(rows.size):
        prefetch_ahead(cache.ticket, rows, i)
        use = np.int64(uses[i])
        cache.ticket[np.uint64(rows[i])] = 0 if use == never else joined[use]
        if use >= cache.counted_from:
            joined[use] += 1
            held[0] += 1
            mark(cache.waiting, use)
    return back + _leave(cache, slots)
