"""The planner of one cache: batches are announced to it, and it plans them in that order."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from systems.freq_cache.planner import announce_loops, plan_loops
from systems.freq_cache.planner.announce_loops import Features, Part
from systems.freq_cache.planner.index import NONE, Index
from systems.freq_cache.planner.order import Order
from systems.freq_cache.planner.plan_loops import Distinct, Moves, Turn
from systems.freq_cache.planner.policy import Policy
from systems.freq_cache.planner.ring import Ring
from systems.freq_cache.threads import in_parts, parts_of, slices_of

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

_INT32_MAX = 2**31 - 1
_PART_IDS = 1 << 16
"""From so many ids a thread on, a batch is announced and planned in parts."""
_TOUCHED_IDS, _NEAR_BYTES = 1 << 13, 1 << 25
"""From so many ids a thread on, and with places of so many bytes, an idle thread reads them ahead of the loop."""


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

    def outside(self, sizes: Int64s) -> int:
        """Where the first id is that its table does not have, or `NONE`. `sizes`: the rows of each feature's table."""
        return int(announce_loops.outside(self.values, self.ends, sizes))


@dataclass(frozen=True)
class Plan:
    """What one batch needs. Rows leave before rows enter: a fetched row may take the slot of one written back.

    Attributes:
        batch: The number of the batch, counted from 0 in the order of announcing.
        rows: Its distinct rows, int32 `[u]`, in order of first occurrence.
        slots: Their slots, int32 `[u]`; below 0 where an overflow batch has none.
        missed: Whether each was absent when the batch was planned, bool `[u]`.
        inverse: Position in `rows` of every id, int32 `[n]`.
        slot_of_id: The slot of every id, int32 `[n]`.
        unique_misses: How many distinct rows were absent when the batch was planned.
        lookup_misses: How many ids ask for one of these.
        fetch_rows, fetch_slots: Rows that enter, and the slots they take, int32.
        back_rows, back_slots: Changed rows that leave and must be written back, and the slots they leave, int32.
        fetch_after: The batch whose write-back each of them must wait for, int32; -1: none.
        overflow: The batch has more distinct rows than the cache has slots. Those without a slot bypass the cache.
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
    fetch_after: Int32s
    overflow: bool

    @property
    def unique_ids(self) -> int:
        return self.rows.size


@dataclass
class _Announced:
    """A batch that is announced and not planned yet."""

    batch: int
    parts: list[Part]
    inverse: Int32s
    changes: bool


class Planner:
    """Decides which rows of a cache of `slots` slots over `rows` rows enter and leave, batch after batch.

    Batches are announced in order. They are planned in that order, each once. A plan brings in the absent rows of its
    batch, in order of first occurrence: into free slots in order, then into those of rows that leave, the victims.

    Victims, best first:

    1. Rows that no announced batch needs. The lowest key leaves first; among equals, the row that was queued first. A
       row is queued when its last announced use is planned, in order of first occurrence in that batch. If its key has
       risen by the time its turn comes, it joins the end of the new key's queue.
    2. Rows that an announced batch needs. The row whose next use is furthest away leaves first; among equals, the row
       that was queued first.

    A row of the batch in hand never leaves. Victims are found many at a time: these rules say which rows leave, not
    which of their slots goes to which row. Rows that only withdrawn batches need join the end of their key's queue.
    Keys may span 65,536 values: of rows further below the highest key, any may leave first.

    Memory, all on the host: 4 B per row and 20 B per slot, what the policy keeps, and 16 B per distinct row and 4 B per
    id of each announced batch. Source: arXiv 2208.05321 for the static and LFU keys; look-ahead as cDLRM (arXiv
    2006.02779) and BagPipe (arXiv 2202.12429) have it, with Belady's rule inside the window.

    Args:
        rows: Of all tables.
        slots: Of the cache; more than `rows` are not used.
        policy: Gives rows their keys.
        batch_ids: Room for so many announced ids is made at first, and more when it is needed.

    Raises:
        TypeError: the policy is none.
        ValueError: rows and slots are 2^31 - 1 or more together, or the policy is made for other rows.
    """

    def __init__(self, *, rows: int, slots: int, policy: Policy, batch_ids: int = 0) -> None:
        if rows + slots >= _INT32_MAX:
            raise ValueError(f"{rows:,} rows and {slots:,} slots in one cache: the index numbers fewer than 2^31")
        if not isinstance(policy, Policy):
            raise TypeError(f"a policy is a Policy, not {type(policy).__name__}: return one that is made for the rows")
        if policy.rows not in {None, rows} or (policy.state is not None and policy.state.shape != (rows,)):
            raise ValueError(f"the policy {type(policy).__name__} is not made for the {rows:,} rows of the cache")
        self.policy = policy
        self.rows = rows
        self.slots = min(slots, rows)
        self._index = Index.empty(rows=rows, slots=self.slots, positions=batch_ids)
        self._ring = Ring(batch_ids)
        self._order = Order.empty(slots=self.slots, fixed=policy.fixed)
        self._used = 0
        self._announced: deque[_Announced] = deque()
        self._batches = 0

    @property
    def announced(self) -> int:
        return len(self._announced)

    @property
    def index_bytes(self) -> int:
        """Host bytes of the index and of the policy, all rows and slots."""
        return self._index.where.nbytes + self._index.slots.nbytes + self._order.nbytes + self.policy.nbytes

    @property
    def window_bytes(self) -> int:
        return self._index.ring.nbytes + sum(batch.inverse.nbytes for batch in tuple(self._announced))

    def warm_up(self) -> tuple[Int32s, Int32s]:
        """Fill an empty cache with the rows that the policy thinks best. Returns them and their slots, int32 each."""
        rows = (
            np.empty(0, np.int32)
            if self._used or self._announced
            else self.policy.checked_best(slots=self.slots, rows=self.rows)
        )
        if rows.size:
            keys = self.policy.checked_keys(rows, np.empty(0, np.int32), batch=0, learn=False)
            self._order = self._order.for_keys([keys])
            plan_loops.fill(rows, keys, self._index, self._order)
            self._order = self._order._replace(lowest=0)
            self._used = rows.size
        return rows, np.arange(rows.size, dtype=np.int32)

    def announce(self, ids: Ids, *, changes: bool) -> None:
        """Learn of the next batch. `changes`: it will be trained, so its rows change."""
        announced = (batch.batch for batch in self._announced)
        self._order = self._order.for_batches(len(self._announced) + 2, announced)
        parts, inverse = self._find_distinct(ids)
        self._announced.append(_Announced(self._batches, parts, inverse, changes))
        self._batches += 1

    def plan(self) -> Plan:
        """Decide what the batch announced longest ago needs, knowing those announced after it.

        Cost: a few memory accesses per distinct row and per row that leaves, whatever the size of table and cache.
        """
        newest = self._announced[-1].batch
        batch = self._announced.popleft()
        turn = Turn(batch.batch, newest, batch.changes)
        distinct = Distinct.room(batch.parts[-1].rows.stop, batch.inverse, counts=self.policy.counts)
        parts = [distinct.part(part) for part in batch.parts]
        absent, keys = self._survey(distinct, parts, turn)
        misses, unique = sum(absent), distinct.rows.size
        overflow = unique > self.slots
        entering = min(self.slots - self._used, misses) if overflow else misses
        fetch_rows, fetch_after = (
            np.concatenate([getattr(part, name)[:count] for part, count in zip(parts, absent, strict=True)])[:entering]
            for name in ("absent_rows", "after")
        )
        self._order = self._order.for_keys(keys)
        moves = self._choose(entering, turn)
        back, lookup_misses = self._assign(parts, slices_of(absent, entering), keys, moves, turn)
        return Plan(
            batch=batch.batch,
            rows=distinct.rows,
            slots=distinct.slots,
            missed=distinct.missed,
            inverse=distinct.inverse,
            slot_of_id=distinct.slot_of_id,
            unique_misses=misses,
            lookup_misses=lookup_misses,
            fetch_rows=fetch_rows,
            fetch_slots=moves.slots,
            back_rows=moves.back_rows[:back],
            back_slots=moves.back_slots[:back],
            fetch_after=fetch_after,
            overflow=overflow,
        )

    def withdraw(self) -> None:
        """Forget every announced batch that is not planned, as if it had never come."""
        for batch in self._announced:  # before their slots are queued by key: there is room for each of them once
            self._order.clear_batch(batch.batch)
        for batch in self._announced:
            for part in batch.parts:
                lowest = announce_loops.withdraw(*part.segment, self._index, self._order)
                self._order = self._order._replace(lowest=lowest)
        self._announced.clear()

    def changed(self) -> tuple[Int32s, Int32s]:
        """Rows and slots that the slow tier lacks, int32 each."""
        slots = np.flatnonzero(self._index.changed[: self._used]).astype(np.int32)
        return self._index.rows[slots], slots

    def written(self, slots: Int32s) -> None:
        """Count the rows in slots as unchanged from now on, because the slow tier has them."""
        self._index.mark_written(slots)

    def held(self, start: int, stop: int) -> tuple[Int32s, Int32s]:
        """Those of the rows `start` to `stop` that have slots, and these, int32 each."""
        rows = self._index.rows[: self._used]
        slots = np.flatnonzero((rows >= start) & (rows < stop)).astype(np.int32)
        return rows[slots], slots

    def slots_of(self, rows: Int64s) -> Int32s:
        """The slots that rows, int64 `[n]`, have after the last plan, int32; below 0 where one has none."""
        places = self._index.where[rows]
        return np.where(places < self.slots, places, NONE).astype(np.int32)

    def _find_distinct(self, ids: Ids) -> tuple[list[Part], Int32s]:
        """Note the distinct rows of a batch in the ring. Returns its parts, and the distinct row of every id.

        A large batch is shared out to several threads. No two of them have a table in common, so they share no row.
        """
        begins = np.empty(ids.ends.size + 1, np.int64)
        edges = np.empty(parts_of(ids.values.size, least=_PART_IDS) + 1, np.int64)
        parts = announce_loops.divide(ids.ends, ids.starts, begins, edges)
        mine = [slice(start, stop) for start, stop in pairwise(begins[edges[: parts + 1]].tolist())]
        live = (part.segment for announced in self._announced for part in announced.parts)
        rooms = self._ring.room([here.stop - here.start for here in mine], live)
        if self._ring.positions > self._index.positions:
            self._index = self._index.with_positions(self._ring.positions)
        index, batch = self._index, self._batches
        idle = parts == 1 and index.where.nbytes > _NEAR_BYTES and parts_of(ids.values.size, least=_TOUCHED_IDS) > 1
        inverse = np.empty(ids.values.size, np.int32)
        found = [0] * parts

        def announce(part: int) -> None:
            if part == parts:  # has the memory ready that the only part comes to later
                announce_loops.touch(Features(ids.values, begins, ids.starts, inverse), index, ids.values.size // 3)
                return
            first, last = edges[part], edges[part + 1]
            features = Features(ids.values, begins[first : last + 1], ids.starts[first:last], inverse)
            found[part] = announce_loops.announce(features, index, rooms[part], batch)

        in_parts(announce, parts + idle)
        segments = [(room, room + count) for room, count in zip(rooms, found, strict=True)]
        self._ring.advance(segments)
        return list(map(Part, segments, slices_of(found), mine)), inverse

    def _survey(self, distinct: Distinct, parts: Sequence[Distinct], turn: Turn) -> tuple[list[int], list[Int32s]]:
        """Find out how many rows of each part are absent, and the keys of its rows; if fixed, of the absent ones."""
        policy, index = self.policy, self._index
        absent = [0] * len(parts)
        keys = [np.empty(0, np.int32)] * len(parts)

        def survey(at: int) -> None:
            part = parts[at]
            absent[at] = plan_loops.survey(part, index)
            if policy.divisible:
                rows = part.absent_rows[: absent[at]] if policy.fixed else part.rows
                keys[at] = policy.checked_keys(rows, part.occurrences, batch=turn.batch, learn=turn.changes)

        in_parts(survey, len(parts))
        if not policy.divisible:
            asked = [p.absent_rows[:n] if policy.fixed else p.rows for p, n in zip(parts, absent, strict=True)]
            every = np.concatenate(asked)
            found = policy.checked_keys(every, distinct.occurrences, batch=turn.batch, learn=turn.changes)
            keys = [found[these] for these in slices_of([rows.size for rows in asked])]
        return absent, keys

    def _choose(self, wanted: int, turn: Turn) -> Moves:
        """Choose a slot for each row that enters."""
        slots, levels = np.empty((2, wanted), np.int32)
        free, lowest = plan_loops.choose(slots, levels, self._used, self._index, self._order, turn)
        self._used += free
        self._order = self._order._replace(lowest=lowest)
        self._order.clear_batch(turn.batch)  # its slots are queued anew when its rows are released
        return Moves(slots, free, np.empty(wanted, np.int32), np.empty(wanted, np.int32))

    def _assign(
        self, parts: Sequence[Distinct], shares: Sequence[slice], keys: Sequence[Int32s], moves: Moves, turn: Turn
    ) -> tuple[int, int]:
        """Give the rows that enter their slots, of which each part has a share, and release the rows of the batch.

        Returns how many rows are to be written back, and how many ids ask for a row that was absent.
        """
        index, order = self._index, self._order
        counts = [(0, 0, 0)] * len(parts)

        def assign(at: int) -> None:
            counts[at] = plan_loops.assign(parts[at], keys[at], moves.part(shares[at]), index, order, turn)

        in_parts(assign, len(parts))
        done = 0
        for part, share, (back, loose, _) in zip(parts, shares, counts, strict=True):
            self._order = self._order.joined_by(part.loose[:loose], part.queue[:loose])
            for gone in (moves.back_rows, moves.back_slots):  # close the gaps between what the threads found
                gone[done : done + back] = gone[share.start : share.start + back]
            done += back
        return done, sum(misses for _, _, misses in counts)
