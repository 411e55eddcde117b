"""Deciding which rows enter and leave a cache, on the host, from what is announced. Moves no rows itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.planner import loops, queues
from systems.freq_cache.planner.loops import ROW, Index, Order
from systems.freq_cache.planner.policy import LEVELS, Policy
from systems.freq_cache.planner.queues import empty_queues
from systems.freq_cache.planner.ring import Ring, Segment
from systems.freq_cache.planner.threads import in_parts, parts_of

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

_INT32_MAX = 2**31 - 1
_MOST_LEVELS = 1 << 16
_PART_IDS = 1 << 16
"""Ids that are worth a thread."""
_TOUCHED_IDS = 1 << 13
_NEAR_BYTES = 1 << 25
"""Ids whose memory is worth a thread that touches it, where the index is larger than the processor's caches."""


@dataclass(frozen=True)
class Ids:
    """The ids of one batch, feature after feature.

    Attributes:
        values: int64 `[n]`, each within its feature's table, duplicates welcome.
        ends: Where each feature's ids end, int64 `[features]`.
        starts: The row at which each feature's table starts, int64 `[features]`.
    """

    values: Int64s
    ends: Int64s
    starts: Int64s


@dataclass(frozen=True)
class Plan:
    """What one batch needs. Rows leave before rows enter: a fetched row may take the slot of one written back.

    Attributes:
        batch: Its number.
        rows: The batch's distinct rows, int32 `[u]`, in order of first occurrence.
        slots: Their slots, int32 `[u]`; below 0 where an overflow batch has none.
        missed: Whether each was absent when the batch arrived, bool `[u]`.
        inverse: Position in `rows` of every id, int32 `[n]`.
        slot_of_id: The slot of every id, int32 `[n]`.
        unique_misses: Distinct rows absent when the batch arrived.
        lookup_misses: Ids that ask for one of them.
        fetch_rows, fetch_slots: Rows to bring in, and the slots they take, int32.
        back_rows, back_slots: Changed rows to write back, and the slots they leave, int32.
        fetch_after: The fetched rows are in the slow tier once the write-back of this batch has landed; -1: now.
        overflow: The batch has more distinct rows than the cache has slots; those without a slot must go past it.
    """

    batch: int
    rows: Int32s
    slots: Int32s
    missed: NDArray[np.bool_]
    inverse: Int32s
    slot_of_id: Int32s
    unique_misses: int
    lookup_misses: int
    fetch_rows: Int32s
    fetch_slots: Int32s
    back_rows: Int32s
    back_slots: Int32s
    fetch_after: int
    overflow: bool

    @property
    def unique_ids(self) -> int:
        """Distinct rows of the batch."""
        return self.rows.size


class _Part(NamedTuple):
    """A part of a batch: its place in the ring, which of the batch's distinct rows it has, and from which ids."""

    segment: Segment
    rows: slice
    ids: slice


@dataclass
class _Announced:
    batch: int
    parts: list[_Part]
    inverse: Int32s
    changes: bool


@dataclass
class _Surveyed:
    """The distinct rows of a batch as they are before anything moves.

    Attributes:
        rows, missed: As in `Plan`.
        missing, missing_rows: Position in the ring and row of each absent one, part by part.
        keys: Of all rows, or of the absent ones if they are fixed, part by part.
        fetch_after: As in `Plan`.
    """

    rows: Int32s
    missed: NDArray[np.bool_]
    missing: list[Int32s]
    missing_rows: list[Int32s]
    keys: list[Int32s]
    fetch_after: int


class Planner:
    """The index of a cache of `slots` slots over `rows` rows, and the order in which rows leave it.

    Batches are announced in order and planned in that order, each once. What leaves: of the rows that no announced
    batch needs, the one of the lowest key, of equals the one queued first (a row is queued when its last known use is
    planned, in order of first occurrence in that batch; it keeps its place while its key is the same, and joins the
    end of its new key's queue when its turn has come under the old one). When every row is needed: the one needed
    last, of equals the one queued first. Never a row of the batch in hand. Missing rows enter in order of first
    occurrence: free slots in order, then those of victims.

    `batch_ids` is how many ids to make room for at first, more comes when it is needed.

    Victims are found in rounds: the same rows leave, but which of their slots goes to which row is left open. What only
    withdrawn batches needed joins the end of its key's queue. Keys may span 65,536 values: of rows further below the
    highest, any may leave first.

    Memory, all on the host: 4 B per row and 20 B per slot, what the policy keeps, and 16 B per distinct row and 4 B per
    id of each announced batch. Source: arXiv 2208.05321 for the static and LFU keys; look-ahead as cDLRM (arXiv
    2006.02779) and BagPipe (arXiv 2202.12429) have it, with Belady's rule inside the window.
    """

    def __init__(self, *, rows: int, slots: int, policy: Policy, batch_ids: int = 0) -> None:
        if rows + slots >= _INT32_MAX:
            raise ValueError(f"{rows:,} rows and {slots:,} slots in one cache: the index numbers fewer than 2^31")
        self.policy = policy
        self.rows = rows
        self.slots = min(slots, rows)
        self._index = Index.empty(rows=rows, slots=self.slots)
        self._ring = Ring(batch_ids)
        self._order = Order(levels=LEVELS, base=0, depth=2, lowest=LEVELS)
        self._queues = empty_queues(queues=LEVELS + self._order.depth, slots=self.slots)
        self._used = 0
        self._announced: deque[_Announced] = deque()
        self._batches = 0

    @property
    def announced(self) -> int:
        """Batches announced and not yet planned."""
        return len(self._announced)

    @property
    def index_bytes(self) -> int:
        """Host bytes of the index and of the policy, all rows and slots."""
        return sum(array.nbytes for array in (*self._index, *self._queues)) + self.policy.nbytes

    @property
    def window_bytes(self) -> int:
        """Host bytes kept for announced batches."""
        return self._ring.entries.nbytes + sum(batch.inverse.nbytes for batch in tuple(self._announced))

    def warm_up(self) -> tuple[Int32s, Int32s]:
        """Fill an empty cache with the rows that the policy thinks best. Returns rows and the slots they take."""
        rows = np.empty(0, np.int32) if self._used or self._announced else self.policy.best(self.slots)
        if rows.size:
            keys = self.policy.keys(rows, np.empty(0, np.int32), batch=0, learn=False)
            self._make_room_for([keys])
            loops.fill(rows, keys, self._index, self._queues, self._order)
            self._used = rows.size
            self._order = self._order._replace(lowest=0)
        return rows, np.arange(rows.size, dtype=np.int32)

    def announce(self, ids: Ids, *, changes: bool) -> None:
        """Enter the next batch. `changes`: its rows will be trained."""
        self._make_depth(len(self._announced) + 2)
        self._announced.append(self._enter(ids, self._batches, changes))
        self._batches += 1

    def plan(self) -> Plan:
        """Decide what the batch announced longest ago needs, knowing those announced after it.

        Cost: a few memory accesses per distinct row and per row that leaves, whatever the size of table and cache.
        """
        newest = self._announced[-1].batch
        batch = self._announced.popleft()
        found = self._survey(batch)
        misses = sum(missing.size for missing in found.missing)
        overflow = found.rows.size > self.slots
        entering = min(self.slots - self._used, misses) if overflow else misses
        fetch_rows = np.concatenate(found.missing_rows)[:entering]
        self._make_room_for(found.keys)
        fetch_slots, free = self._choose(entering, batch.batch, newest)
        slots, slot_of_id, lookup_misses, back_rows, back_slots = self._settle(batch, found, fetch_slots, free)
        return Plan(
            batch=batch.batch,
            rows=found.rows,
            slots=slots,
            missed=found.missed,
            inverse=batch.inverse,
            slot_of_id=slot_of_id,
            unique_misses=misses,
            lookup_misses=lookup_misses,
            fetch_rows=fetch_rows,
            fetch_slots=fetch_slots,
            back_rows=back_rows,
            back_slots=back_slots,
            fetch_after=found.fetch_after,
            overflow=overflow,
        )

    def withdraw(self) -> None:
        """Forget every announced batch that is not planned, as if it had never come."""
        for batch in self._announced:  # before their slots are queued by key: there is room for each of them once
            queues.clear(self._queues, self._order.levels + batch.batch % self._order.depth)
        for batch in self._announced:
            for part in batch.parts:
                lowest = loops.withdraw(*part.segment, self._index, self._ring.entries, self._queues, self._order)
                self._order = self._order._replace(lowest=lowest)
        self._announced.clear()

    def changed(self) -> tuple[Int32s, Int32s]:
        """Rows and slots that the slow tier lacks; they count as written back from now on. Int32 each."""
        return self._unmark(self._index.every(ROW)[: self._used] < 0)

    def held(self, start: int, stop: int) -> tuple[Int32s, Int32s]:
        """Those of the rows `start` to `stop` that have slots, and these; they count as unchanged from now on."""
        rows = self._index.every(ROW)[: self._used]
        rows = np.maximum(rows, ~rows)
        return self._unmark((rows >= start) & (rows < stop))

    def change(self, slots: Int32s) -> None:
        """Count slots as changed since they were last written back."""
        rows = self._index.every(ROW)
        rows[slots] = np.minimum(rows[slots], ~rows[slots])

    def _unmark(self, chosen: NDArray[np.bool_]) -> tuple[Int32s, Int32s]:
        slots = np.flatnonzero(chosen).astype(np.int32)
        rows = self._index.every(ROW)
        rows[slots] = np.maximum(rows[slots], ~rows[slots])
        return rows[slots], slots

    def _enter(self, ids: Ids, batch: int, changes: bool) -> _Announced:
        """Find the distinct rows of a batch, on several threads if it is large: no two tables share a row."""
        begins = np.empty(ids.ends.size + 1, np.int64)
        edges = np.empty(parts_of(ids.values.size, least=_PART_IDS) + 1, np.int64)
        parts = loops.divide(ids.ends, ids.starts, begins, edges)
        mine = [slice(start, stop) for start, stop in pairwise(begins[edges[: parts + 1]].tolist())]
        live = (part.segment for announced in self._announced for part in announced.parts)
        rooms = self._ring.room([here.stop - here.start for here in mine], live)
        ring, where = self._ring.entries, self._index.where
        idle = parts == 1 and where.nbytes > _NEAR_BYTES and parts_of(ids.values.size, least=_TOUCHED_IDS) > 1
        inverse = np.empty(ids.values.size, np.int32)
        found = [0] * parts

        def enter(part: int, _: int) -> None:
            if part == parts:  # has the memory ready that the only part comes to later
                loops.touch(where, ids.values, begins, ids.starts, ids.values.size // 3)
                return
            first, last = edges[part], edges[part + 1]
            tables = begins[first : last + 1], ids.starts[first:last]
            found[part] = loops.enter(ids.values, *tables, self._index, ring, inverse, rooms[part], batch)

        in_parts(enter, parts + idle)
        segments = [(room, room + count) for room, count in zip(rooms, found, strict=True)]
        self._ring.take(segments)
        return _Announced(batch, list(map(_Part, segments, _slices(found), mine)), inverse, changes)

    def _survey(self, batch: _Announced) -> _Surveyed:
        unique = batch.parts[-1].rows.stop
        rows, missing, missing_rows = (np.empty(unique, np.int32) for _ in range(3))
        missed = np.empty(unique, np.bool_)
        policy = self.policy
        occurrences = np.zeros(unique if policy.counts else 0, np.int32)
        absent = [slice(0, 0) for _ in batch.parts]
        after = [loops.NONE for _ in batch.parts]
        keys = [np.empty(0, np.int32) for _ in batch.parts]

        def survey(at: int, _: int) -> None:
            segment, mine, ids = batch.parts[at]
            room = rows[mine], missed[mine], missing[mine], missing_rows[mine]
            asked = batch.inverse[ids], mine.start, occurrences[mine]
            misses, after[at] = loops.survey(self._ring.entries, *segment, *room, *asked)
            absent[at] = slice(mine.start, mine.start + misses)
            if policy.divisible:
                ranked = missing_rows[absent[at]] if policy.fixed else rows[mine]
                keys[at] = policy.keys(ranked, occurrences[mine], batch=batch.batch, learn=batch.changes)

        in_parts(survey, len(batch.parts))
        if not policy.divisible:
            ranked = np.concatenate([missing_rows[these] for these in absent]) if policy.fixed else rows
            found = policy.keys(ranked, occurrences, batch=batch.batch, learn=batch.changes)
            sizes = [these.stop - these.start for these in (absent if policy.fixed else [p.rows for p in batch.parts])]
            keys = [found[these] for these in _slices(sizes)]
        return _Surveyed(
            rows=rows,
            missed=missed,
            missing=[missing[these] for these in absent],
            missing_rows=[missing_rows[these] for these in absent],
            keys=keys,
            fetch_after=max(after),
        )

    def _settle(
        self, batch: _Announced, surveyed: _Surveyed, fetch_slots: Int32s, free: int
    ) -> tuple[Int32s, Int32s, int, Int32s, Int32s]:
        """Give entering rows their slots and let the rows of the batch go. Returns fields of `Plan`.

        These are slots of rows and of ids, the number of ids whose row was absent, and rows and slots to write back.
        """
        entering, unique = fetch_slots.size, surveyed.rows.size
        moves = _slices([missing.size for missing in surveyed.missing], entering)
        slots, loose, into = (np.empty(unique, np.int32) for _ in range(3))
        back_rows, back_slots = (np.empty(entering, np.int32) for _ in range(2))
        slot_of_id = np.empty(batch.inverse.size, np.int32)
        found = [(0, 0, 0)] * len(batch.parts)

        def settle(at: int, _: int) -> None:
            (segment, mine, ids), move = batch.parts[at], moves[at]
            found[at] = loops.settle(
                *segment,
                surveyed.missing[at][: move.stop - move.start],
                fetch_slots[move],
                max(free - move.start, 0),
                surveyed.keys[at],
                self.policy.fixed,
                self._index,
                self._ring.entries,
                self._order,
                back_rows[move],
                back_slots[move],
                slots[mine],
                loose[mine],
                into[mine],
                batch.batch,
                batch.changes,
                surveyed.missed[mine],
                batch.inverse[ids],
                mine.start,
                slot_of_id[ids],
            )

        in_parts(settle, len(batch.parts))
        done = 0
        for part, move, (back, queued, _) in zip(batch.parts, moves, found, strict=True):
            first = part.rows.start
            self._enqueue(loose[first : first + queued], into[first : first + queued])
            for gone in (back_rows, back_slots):  # close the gaps between what the threads found
                gone[done : done + back] = gone[move.start : move.start + back]
            done += back
        return slots, slot_of_id, sum(misses for _, _, misses in found), back_rows[:done], back_slots[:done]

    def _choose(self, wanted: int, batch: int, newest: int) -> tuple[Int32s, int]:
        """Slots for rows that enter, and how many of these slots, the first, are free."""
        slots, room = np.empty((2, wanted), np.int32)
        free, lowest = loops.choose(
            wanted,
            self.policy.fixed,
            self._index,
            self._ring.entries,
            self._queues,
            self._order,
            slots,
            room,
            self._used,
            newest,
            batch,
        )
        self._used += free
        self._order = self._order._replace(lowest=lowest)
        queues.clear(self._queues, self._order.levels + batch % self._order.depth)  # they are all of this batch
        return slots, free

    def _enqueue(self, slots: Int32s, into: Int32s) -> None:
        lowest = loops.enqueue(slots, into, self._queues, self._order)
        self._order = self._order._replace(lowest=lowest)

    def _make_depth(self, batches: int) -> None:
        """Room for a queue per announced batch."""
        order = self._order
        if batches <= order.depth:
            return
        depth = 2 * batches
        old = self._queues.ends.reshape(-1, 2)
        ends = np.full((order.levels + depth, 2), queues.EMPTY, np.int32)
        ends[: order.levels] = old[: order.levels]
        for live in self._announced:
            ends[order.levels + live.batch % depth] = old[order.levels + live.batch % order.depth]
        self._order = order._replace(depth=depth)
        self._queues = queues.rearranged(self._queues, ends.reshape(-1), self.slots)

    def _make_room_for(self, keys: Sequence[Int32s]) -> None:
        """Room for queues from the lowest of keys to the highest, by leaving out empty ones, else by more queues."""
        some = [these for these in keys if these.size]
        if not some:
            return
        order = self._order
        least, highest = min(int(these.min()) for these in some), max(int(these.max()) for these in some)
        top = order.base + order.levels
        if highest < top and (order.base <= least or top - least > _MOST_LEVELS):
            return
        old = self._queues.ends.reshape(-1, 2)
        queued = order.base + np.flatnonzero(old[: order.levels, 0] != queues.EMPTY)
        highest = max([highest, *queued[-1:].tolist()])
        # rows that are much further down than the others are of equal rank from here on
        base = max(min([least, *queued[:1].tolist()]), highest - _MOST_LEVELS // 2)
        far = queued[queued <= base]
        if far.size:
            queues.merge(self._queues, int(far[0]) - order.base, int(far[-1]) - order.base)
            queued = queued[far.size - 1 :]
        levels = max(order.levels, min(2 * (highest - base + 1), _MOST_LEVELS))
        ends = np.full((levels + order.depth, 2), queues.EMPTY, np.int32)
        ends[np.maximum(queued - base, 0)] = old[queued - order.base]
        ends[levels:] = old[order.levels :]
        self._order = order._replace(levels=levels, base=base, lowest=0)
        self._queues = queues.rearranged(self._queues, ends.reshape(-1), self.slots)


def _slices(sizes: Sequence[int], most: int = _INT32_MAX) -> list[slice]:
    """Stretches of so many, one behind the other, of which nothing lies beyond `most`."""
    ends = [min(end, most) for end in accumulate(sizes)]
    return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
