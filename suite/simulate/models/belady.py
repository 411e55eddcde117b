"""Bounds: the least that any cache could miss, and what none of any size could hold."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suite.simulate.models.model import CacheModel, Setting, Tally
from suite.simulate.trace import DistinctRows, Int32s, Int64s, Seen, Trace, made_ahead
from systems.freq_cache.cache.policy import StaticFrequency
from systems.freq_cache.compiled import compiled, prefetch_ahead

HELD, FARTHEST = range(2)
"""Entries of the state: cached rows, and a batch behind which no cached row is used next."""


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
    finding of distinct rows, `next_uses`, with a warm start 4 B for levels, and 32 B per batch; nothing per slot.
    """

    variants = {"bypass": ("off", "on"), "warm": ("frequent", "off")}

    def __init__(self, setting: Setting, parameters: Mapping[str, str]) -> None:
        super().__init__(setting, parameters)
        span, rows = setting.span, setting.trace.rows
        first, self._uses = next_uses(setting.trace, span.stop)
        level, bar = _start_rows(setting, parameters["warm"])
        started, joined, left = np.zeros((3, span.stop + 1), np.int64)
        ticket, state = np.full(rows, -1, np.int32), np.zeros(2, np.int64)
        bypass = parameters.get("bypass") == "on"
        self._cache = _Cache(
            ticket, level, bar, started, joined, left, state, span.counted_from, self.slots, bypass=bypass
        )
        if level.size:
            _start(self._cache, first, setting.slots)

    def step(self, batch: Seen, tally: Tally | None) -> None:
        rows = batch.unique[0]
        missed = np.empty(rows.size, np.bool_)
        back = _turn(self._cache, rows, self._uses[batch.number], batch.number, missed)
        if tally is not None:
            tally.rows_fetched += self.count(batch, missed, tally)
            tally.rows_written_back += back


class CompulsoryModel(BeladyModel):
    """A cache with a slot for every row: only rows that were never used before are missed, and none leaves.

    `warm` is as in `BeladyModel`: it starts with as many rows as there are slots. Never above `belady` with the same
    start, and as much memory.
    """

    variants = {"warm": BeladyModel.variants["warm"]}

    @property
    def slots(self) -> int:
        return self.setting.trace.rows


def _start_rows(setting: Setting, warm: str) -> tuple[Int32s, int]:
    """Levels of the rows, none for a cache that starts empty, and the lowest level of rows that it may start with.

    Frequencies of one level are equal to `StaticFrequency`, and of equals a cache may hold any.
    """
    if warm == "off":
        return np.empty(0, np.int32), 0
    levels = _levels(setting.trace)
    or_higher = np.bincount(levels)[::-1].cumsum()[::-1]
    enough = np.flatnonzero(or_higher >= min(setting.slots, levels.size))
    return levels, int(enough[-1])


@lru_cache(maxsize=1)  # the same at every size of a cache
def _levels(trace: Trace) -> Int32s:
    """The level of the frequency of every row, int32 `[rows]`."""
    rows = np.arange(trace.rows, dtype=np.int32)
    return StaticFrequency(trace.frequencies()).keys(rows, rows, batch=0, learn=False)


Uses = NDArray[np.unsignedinteger]
"""Numbers of batches: uint16 where they fit, else uint32."""


@lru_cache(maxsize=1)  # the same at every size of a cache
def next_uses(trace: Trace, stop: int) -> tuple[Uses, list[Uses]]:
    """The next uses of rows in batches 0 to `stop`, which stands for never; the trace is read once, backwards.

    Memory: 2 B per row of the tables and per distinct row of each batch; 4 B from 65,536 batches on.

    Returns:
        The batch that uses each row first, `[rows]`; by batch the next uses of its distinct rows, `[u]`, in order of
        first occurrence.
    """
    first: Uses = np.full(trace.rows, stop, np.uint16 if stop <= np.iinfo(np.uint16).max else np.uint32)
    of = [first] * stop
    distinct = DistinctRows(trace.rows)
    for number, ids in made_ahead(trace, reversed(range(stop)), threads=2):  # here nothing else takes long
        rows, _ = distinct.of(ids)
        of[number] = first[rows]
        first[rows] = number
    return first, of


class _Cache(NamedTuple):
    """Cached rows by the batch that uses them next; first to join, first to leave.

    Attributes:
        ticket: How many had joined before each row, -1 for a row not met, int32 `[rows]`.
        level: Of each row, int32 `[rows]`; empty if the cache starts empty.
        bar: The lowest level of rows that the cache may have started with.
        started: Rows next used by each batch that the cache started with, int64 `[stop + 1]`.
        joined: All rows that joined, int64 `[stop + 1]`.
        left: Rows that left, int64 `[stop + 1]`.
        state: `HELD` and `FARTHEST`, where `stop` stands for never.
        counted_from: The first counted batch.
        slots: Of the cache.
        bypass: Whether rows may be read past it.
    """

    ticket: Int32s
    level: Int32s
    bar: int
    started: Int64s
    joined: Int64s
    left: Int64s
    state: Int64s
    counted_from: int
    slots: int
    bypass: bool


@compiled
def _start(cache, first, most):
    """Start with at most so many rows that the counted batches are the first to use, the nearest first.

    Which rows they are is left open until they are used: the first so many of a batch that may be among them.
    """
    for row in range(first.size):
        cache.started[first[row]] += cache.level[row] >= cache.bar
    cache.started[: cache.counted_from] = 0
    for batch in range(cache.counted_from, cache.started.size - 1):
        new = min(cache.started[batch], most - cache.state[HELD])
        cache.started[batch] = cache.joined[batch] = new
        cache.state[HELD] += new
    cache.state[FARTHEST] = cache.started.size - 1
    cache.started[-1] = 0


@compiled
def _find(cache, rows, now, missed):
    """Whether each row of a batch is absent."""
    new = 0
    for i in range(rows.size):
        prefetch_ahead(cache.ticket, rows, i)
        row = np.uint64(rows[i])
        ticket = int(cache.ticket[row])
        if ticket < 0 and new < cache.started[now] and cache.level[row] >= cache.bar:
            ticket = new
            new += 1
        missed[i] = not cache.left[now] <= ticket < cache.joined[now]


@compiled
def _leave(cache, keep):
    """Have rows leave until so many are left, the one used last first. Returns how many of them were changed."""
    joined, left, state = cache.joined, cache.left, cache.state
    back = 0
    while state[HELD] > keep:
        farthest = state[FARTHEST]
        if joined[farthest] == left[farthest]:
            state[FARTHEST] -= 1
            continue
        going = min(joined[farthest] - left[farthest], state[HELD] - keep)
        changed_from = max(left[farthest], cache.started[farthest])
        left[farthest] += going
        state[HELD] -= going
        back += max(0, left[farthest] - changed_from)
    return back


@compiled
def _turn(cache, rows, uses, now, missed):
    """Have a batch take its turn. `missed` receives whether each row was absent. Returns rows written back."""
    _find(cache, rows, now, missed)
    joined, state, slots = cache.joined, cache.state, cache.slots
    never = joined.size - 1
    if joined[now] > cache.left[now]:
        state[HELD] -= joined[now] - cache.left[now]
        cache.left[now] = joined[now]
    others = slots if cache.bypass or rows.size > slots else slots - rows.size  # that may stay beside it
    back = _leave(cache, others)
    for i in range(rows.size):
        prefetch_ahead(cache.ticket, rows, i)
        use = np.int64(uses[i])
        cache.ticket[np.uint64(rows[i])] = 0 if use == never else joined[use]
        if use >= cache.counted_from:
            joined[use] += 1
            state[HELD] += 1
            state[FARTHEST] = max(state[FARTHEST], use)
    return back + _leave(cache, slots)
