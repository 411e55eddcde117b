"""The planner of one cache: it plans announced batches in order."""

from collections import deque
from dataclasses import dataclass
from itertools import islice

import numpy as np

from systems.freq_cache.cache import loops
from systems.freq_cache.cache.loops import ABSENT, CHANGED, NONE, PINNED, PINS, TAKEN, Index
from systems.freq_cache.cache.plan import Distinct, Ids, Int32s, Int64s, OutsideTable, Plan
from systems.freq_cache.cache.policy import LEVELS, Policy, checked
from systems.threads import interrupts_deferred

_INT32_MAX = 2**31 - 1


@dataclass
class _Announced:
    """A batch that is announced and not planned yet.

    Attributes:
        found: Where its rows were when they were pinned last, int32 `[u]`.
        pins: Whether its rows are pinned until this batch.
    """

    batch: int
    distinct: Distinct
    changes: bool
    found: Int32s
    pins: bool = False

    @property
    def nbytes(self) -> int:
        return self.distinct.nbytes + self.found.nbytes


class Planner:
    """Decides which rows of a cache of `slots` slots over `rows` rows enter and leave, batch after batch.

    Batches are planned in the order of announcing. A plan brings in the absent rows of its batch, in order of first
    occurrence: into free slots in order, then into those of victims.

    Batches are pinned in order, 255 at most, as long as each has no more distinct rows than there are slots whose row
    is not pinned. A row is queued when the batch is planned until which it was pinned, in order of first occurrence in
    that batch. If its key has risen by the time its turn comes, or if it was used and the policy reinserts, it joins
    the end of its key's queue.

    A row of the batch in hand never leaves. If too few others can, the pins of the batch announced last are taken
    back, and so on; rows that are in a slot then join the queue of their key, in order of first occurrence.

    Memory, all on the host: 4 B per row, 8 if `apart`, and 12 B per slot, what the policy keeps, 12 B per distinct row
    and 4 B per id of each announced batch, and 16 B per id of the largest. Source: arXiv 2208.05321 for the static and
    LFU keys; look-ahead as cDLRM (arXiv 2006.02779) and BagPipe (arXiv 2202.12429) have it.

    Args:
        rows: Number of rows of all tables.
        slots: Number of slots; more than `rows` are not used.
        policy: Gives rows their keys.
        batch_ids: Room for batches of so many ids is made at first, and more when it is needed.
        apart: A thread may find the distinct rows of a batch while another one plans.

    Raises:
        TypeError: the policy is none.
        ValueError: rows and slots are 2^31 - 1 or more together, or the policy is made for other rows.
    """

    def __init__(self, *, rows: int, slots: int, policy: Policy, batch_ids: int = 0, apart: bool = False) -> None:
        if rows + slots >= _INT32_MAX:
            raise ValueError(f"{rows:,} rows and {slots:,} slots in one cache: the index numbers fewer than 2^31")
        if not isinstance(policy, Policy):
            raise TypeError(f"a policy is a Policy, not {type(policy).__name__}: return one that is made for the rows")
        if policy.rows not in {None, rows} or (policy.state is not None and policy.state.shape != (rows,)):
            raise ValueError(f"the policy {type(policy).__name__} is not made for the {rows:,} rows of the cache")
        self.policy = policy
        self.rows = rows
        self.slots = min(slots, rows)
        self._index = Index.empty(rows=rows, slots=self.slots)
        self._room = np.zeros((2, batch_ids + 1), np.int64)
        self._seen = np.full(rows, ABSENT, np.int32) if apart else None
        """Locations for `distinct` alone: all absent before and after."""
        self._announced: deque[_Announced] = deque()
        self._batches = 0
        self._taken_back = NONE
        """Batches up to this one may have rows whose pin was taken back."""

    @property
    def announced(self) -> int:
        return len(self._announced)

    @property
    def index_bytes(self) -> int:
        """Host bytes of the index and of the policy, all rows and slots."""
        return self._index.nbytes + self.policy.nbytes + (0 if self._seen is None else self._seen.nbytes)

    @property
    def window_bytes(self) -> int:
        """Host bytes of announced batches, and of the room in which their rows are found."""
        return self._room.nbytes + sum(batch.nbytes for batch in tuple(self._announced))

    def warm_up(self) -> tuple[Int32s, Int32s]:
        """Fill an empty cache with the rows that the policy thinks best. Returns them and their slots, int32 each."""
        if self._index.state[TAKEN] or self._announced:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        rows = self.best(self.slots)
        keys = self._keys(rows, np.zeros_like(rows), batch=0, learn=False)
        slots, none = np.arange(rows.size, dtype=np.int32), np.empty(0, np.int32)
        loops.exchange(rows, slots.copy(), slots, keys, slots, none, none, 0, False, True, False, self._index)
        return rows, slots

    def best(self, number: int) -> Int32s:
        """Up to so many rows that the policy ranks highest, int32, the best first.

        Raises:
            ValueError: the policy returned something else.
        """
        number = min(number, self.rows)
        call = f"{type(self.policy).__name__}.best({number})"
        rows = checked(call, self.policy.best(number), most=number, below=self.rows)
        if np.unique(rows).size < rows.size:
            raise ValueError(f"{call} returned a row twice: give each once")
        return rows

    def distinct(self, ids: Ids, sizes: Int64s | None = None) -> Distinct:
        """The distinct rows of a batch; nothing is learnt of it.

        No other thread may use the planner meanwhile; `apart`: none may find rows.

        Args:
            ids: The ids of the batch.
            sizes: Rows of each feature's table, int64 `[features]`. None: all rows from its start on.

        Raises:
            OutsideTable: an id is outside its table.
            ValueError: there are too many ids.
        """
        n = ids.values.size
        if self.slots + n > _INT32_MAX:
            raise ValueError(f"{n:,} ids are too many for the index: announce fewer")
        if sizes is None:
            sizes = self.rows - ids.starts
        if self._room.shape[1] < n + 1:
            self._room = np.zeros((2, n + 1), np.int64)
        inverse, found = np.empty(n, np.int32), np.empty((2, n), np.int32)
        batch = ids.values, ids.ends, ids.starts, sizes
        where, behind = (self._index.where, self.slots) if self._seen is None else (self._seen, 0)
        with interrupts_deferred():
            end, bad = loops.find_distinct(*batch, inverse, *found, *self._room, where, behind)
        if bad != NONE:
            raise OutsideTable(bad)
        rows, counts = found[:, :end].copy()
        return Distinct(rows, counts, inverse)

    def announce(self, distinct: Distinct, *, changes: bool) -> None:
        """Learn of the next batch. `changes`: it will be trained, so its rows change."""
        self._announced.append(_Announced(self._batches, distinct, changes, np.empty_like(distinct.rows)))
        self._batches += 1
        self._pin()

    def plan(self) -> Plan:
        """Decide what the batch announced longest ago needs, knowing those announced after it.

        Cost: a few memory accesses per distinct row and per row that leaves, whatever the size of table and cache.
        """
        now, index = self._announced.popleft(), self._index
        rows, counts = now.distinct.rows, now.distinct.counts
        # Few long calls: whenever this thread takes the interpreter's lock again after one, the training thread is kept
        # out and sleeps, and is awake late. A short call is over before that.
        if not now.pins or now.batch <= self._taken_back:
            loops.pin(rows, now.batch, False, now.found, index)
        slots, missed, fetch_rows = now.found, np.empty(rows.size, np.bool_), np.empty_like(rows)
        absent = np.empty_like(rows)
        misses, lookup_misses = loops.find_absent(rows, counts, slots, missed, absent, fetch_rows, index)
        absent, fetch_rows, fixed = absent[:misses], fetch_rows[:misses], self.policy.fixed
        asked = (fetch_rows, np.zeros_like(fetch_rows)) if fixed else (rows, counts)
        keys = self._keys(*asked, batch=now.batch, learn=now.changes)
        overflow = rows.size > self.slots
        entering = min(misses, self.slots - int(index.state[TAKEN])) if overflow else misses
        fetch_slots, after, back_rows, back_slots = np.empty((4, entering), np.int32)
        moves = rows, slots, absent, keys, fetch_slots, back_rows, back_slots
        how = now.batch, now.changes, fixed, self.policy.reinserts, index
        found, left = loops.admit(after, *moves, *how)
        if found < entering:
            self._take_back_pins(fetch_slots, found, now)
            left = loops.exchange(*moves, *how)
        self._pin()
        return Plan(
            batch=now.batch,
            rows=rows,
            slots=slots,
            missed=missed,
            inverse=now.distinct.inverse,
            unique_misses=misses,
            lookup_misses=lookup_misses,
            fetch_rows=fetch_rows[:entering],
            fetch_slots=fetch_slots,
            back_rows=back_rows[:left],
            back_slots=back_slots[:left],
            fetch_after=after,
            overflow=overflow,
        )

    def withdraw(self) -> None:
        """Forget every announced batch that is not planned, as if it had never come."""
        while self._announced:
            self._unpin(self._announced.popleft())

    def changed(self) -> tuple[Int32s, Int32s]:
        """Rows and slots that the slow tier lacks, int32 each."""
        slots = np.flatnonzero(self._index.status & CHANGED).astype(np.int32)
        return self._index.row_of[slots], slots

    def written(self, slots: Int32s) -> None:
        """Count the rows in slots as unchanged from now on, because the slow tier has them."""
        self._index.status[slots] &= ~CHANGED

    def held(self, start: int, stop: int) -> tuple[Int32s, Int32s]:
        """Those of the rows `start` to `stop` that have slots, and these, int32 each."""
        rows = self._index.row_of
        slots = np.flatnonzero((rows >= start) & (rows < stop)).astype(np.int32)
        return rows[slots], slots

    def slots_of(self, rows: Int32s) -> Int32s:
        """The slots that rows, int32 `[n]`, have after the last plan, int32; below 0 where one has none."""
        return self._index.where[rows]

    def _keys(self, rows: Int32s, occurrences: Int32s, *, batch: int, learn: bool) -> Int32s:
        keys = self.policy.keys(rows, occurrences, batch=batch, learn=learn)
        call = f"{type(self.policy).__name__}.keys() of {rows.size} rows"
        return checked(call, keys, least=rows.size, most=rows.size, below=LEVELS)

    def _pin(self) -> None:
        """Pin the rows of announced batches in order, as long as there are as many slots that are not pinned."""
        for batch in islice(self._announced, PINS):
            if batch.pins:
                continue
            if self._index.state[PINNED] + batch.distinct.rows.size > self.slots:
                break
            loops.pin(batch.distinct.rows, batch.batch, True, batch.found, self._index)
            batch.pins = True

    def _unpin(self, batch: _Announced) -> None:
        if batch.pins:
            loops.unpin(batch.distinct.rows, batch.batch, self._index)
            batch.pins = False

    def _take_back_pins(self, slots: Int32s, found: int, now: _Announced) -> None:
        """Choose the slots that are missing for a batch: take back the pins of the batches announced last."""
        for batch in reversed(self._announced):
            self._unpin(batch)
            self._taken_back = self._batches - 1
            loops.pin(now.distinct.rows, now.batch, False, now.found, self._index)
            found = loops.choose(slots, found, self._index)
            if found == slots.size:
                return
