"""The forms that a batch takes in the planner, several batches before one backward, and what is counted of them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec import KeyedJaggedTensor

from systems.contract import Counters
from systems.freq_cache.compiled import compiled, gather

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class OutsideTable(IndexError):
    """An id is outside its table. `at`: its index in the batch."""

    def __init__(self, at: int) -> None:
        super().__init__(f"id number {at} of the batch is outside its table")
        self.at = at


@dataclass(frozen=True)
class Ids:
    """The ids of one batch, feature after feature.

    Attributes:
        values: int64 `[n]`, each within its feature's table, duplicates welcome.
        ends: Where each feature's ids end, int64 `[features]`.
        starts: The row at which each feature's table starts, int64 `[features]`.
        offsets: Where bags begin, feature after feature, and where the last one ends, int32 `[features * batch + 1]`;
            empty where every bag has one id, or only the planner reads the ids.
    """

    values: Int64s
    ends: Int64s
    starts: Int64s
    offsets: Int32s = field(default_factory=lambda: np.empty(0, np.int32))

    @classmethod
    def of(cls, features: KeyedJaggedTensor, starts: Int64s) -> Self:
        """The ids of a batch on the host, as many bags for every feature.

        Raises:
            ValueError: as `check_bags`.
        """
        ends, one_each = check_bags(features)
        given = cls(features.values().long().contiguous().numpy(), ends, starts)
        # a copy: it was checked, and the caller may overwrite its own before the lookup
        return given if one_each else replace(given, offsets=features.offsets().to(torch.int32, copy=True).numpy())


def check_bags(features: KeyedJaggedTensor) -> tuple[Int64s, bool]:
    """Check on the host that bags share out the ids; kernels would read beyond them otherwise.

    Returns:
        Where each feature's ids end, int64 `[features]`, and whether every bag has one id.

    Raises:
        ValueError: they do not.
    """
    ids, given = features.values().numel(), features.offsets_or_none()
    offsets, ends = np.empty(0, np.int64) if given is None else given.numpy(), np.empty(len(features.keys()), np.int64)
    fine, one_each = _share_out(features.lengths().numpy(), offsets, ids, ends)
    if not fine:
        raise ValueError(f"the lengths or offsets of the bags do not share out {ids:,} ids: correct them")
    return ends, one_each


@compiled
def _share_out(lengths: NDArray[Any], offsets: NDArray[Any], ids: int, ends: Int64s) -> tuple[bool, bool]:
    """Whether bags of these lengths take every id once, their offsets being those given, and whether all take one.

    `ends` receives where each feature's ids end. No turn of the inner loops depends on one before it, so several are
    made at a time. No sum can wrap: all ends, and all lengths, are compared with the ids.
    """
    beyond = other = many = total = np.int64(0)  # the sign of `beyond`: a number is below 0 or above the ids
    bags = lengths.size // max(ends.size, 1)
    for feature in range(ends.size):
        for i in range(feature * bags, feature * bags + bags):
            length = np.int64(lengths[i])
            beyond |= length | (ids - length)
            many |= length ^ 1
            total += length
        ends[feature] = total
    if offsets.size:
        if offsets.size != lengths.size + 1 or offsets[0] != 0:
            return False, False
        for i in range(lengths.size):
            end = np.int64(offsets[i + 1])
            beyond |= end | (ids - end)
            other |= (end - offsets[i]) ^ np.int64(lengths[i])
    return bool(beyond >= 0 and other == 0 and total == ids), bool(many == 0)


@dataclass(frozen=True)
class Distinct:
    """The distinct rows of one batch.

    Attributes:
        rows: int32 `[u]`, in order of first occurrence.
        counts: How many ids ask for each, int32 `[u]`.
        inverse: Position in `rows` of every id, int32 `[n]`.
    """

    rows: Int32s
    counts: Int32s
    inverse: Int32s

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.counts.nbytes + self.inverse.nbytes


@dataclass(frozen=True)
class Plan:
    """Row moves of one batch. Write-backs come before fetches: a fetched row may take the slot of one written back.

    Attributes:
        batch: The number of the batch, counted from 0 in the order of announcing.
        rows: Its distinct rows, int32 `[u]`, in order of first occurrence.
        slots: Their slots, int32 `[u]`; below 0 where an overflow batch has none.
        missed: Whether each was absent when the batch was planned, bool `[u]`.
        inverse: Position in `rows` of every id, int32 `[n]`.
        unique_misses: Number of distinct rows that were absent when the batch was planned.
        lookup_misses: Number of ids of such rows.
        fetch_rows, fetch_slots: Rows to fetch, and their slots, int32.
        back_rows, back_slots: Evicted rows to write back, because they changed, and their slots, int32.
        fetch_after: The batch whose write-back each row to fetch must wait for, int32; -1: none.
        overflow: The batch has more distinct rows than the cache has slots. Rows without a slot bypass the cache.
    """

    batch: int
    rows: Int32s
    slots: Int32s
    missed: NDArray[np.bool_]
    inverse: Int32s
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

    @property
    def slot_of_id(self) -> Int32s:
        """The slot of every id, int32 `[n]`, gathered anew: not by the planning thread, which has most to do."""
        slots = np.empty(self.inverse.size, np.int32)
        gather(self.slots, self.inverse, slots)
        return slots


@dataclass
class _Batch:
    """An announced batch. `rows`: its distinct rows; `number`: set once planned."""

    rows: Int32s
    number: int = -1


class BackwardGroup:
    """Plans every batch with the rows of the batches before it, because the planner never evicts rows of its batch.

    Up to `lookups` lookups may come before one backward. The training thread calls `looked_up`; the thread that calls
    the planner calls everything else.
    """

    def __init__(self, lookups: int) -> None:
        self._before = lookups - 1
        self._batches: list[_Batch] = []
        self._looked_up: deque[int] = deque(maxlen=self._before)
        """Numbers of the last lookups."""
        self._last = -1
        """Number of the last lookup or refusal: batches planned up to it and not looked up are dropped."""

    def announced(self, distinct: Distinct) -> Distinct:
        """Rows to announce for a batch: its own and, behind them and used by no id, those of the batches before it."""
        if not self._before:
            return distinct
        last, looked_up = self._last, tuple(self._looked_up)
        self._batches = [one for one in self._batches if one.number in looked_up or not 0 <= one.number <= last]
        before = [batch.rows for batch in self._batches[-self._before :]]
        self._batches.append(_Batch(distinct.rows))
        others = np.setdiff1d(np.concatenate([distinct.rows[:0], *before]), distinct.rows)
        rows, counts = np.concatenate([distinct.rows, others]), np.zeros(distinct.rows.size + others.size, np.int32)
        counts[: distinct.rows.size] = distinct.counts
        return Distinct(rows, counts, distinct.inverse)

    def planned(self, plan: Plan) -> Plan:
        """Reduce the plan of the oldest announced batch to the batch's own rows. All moves remain."""
        if not self._before:
            return plan
        batch = next(batch for batch in self._batches if batch.number < 0)
        batch.number = plan.batch
        own = slice(batch.rows.size)
        slots, missed = plan.slots[own], plan.missed[own]
        overflow = plan.overflow and bool((slots < 0).any())
        misses = int(missed.sum())
        return replace(plan, rows=batch.rows, slots=slots, missed=missed, unique_misses=misses, overflow=overflow)

    def looked_up(self, batch: int) -> None:
        """Note the lookup of a planned batch; batches planned before it are not looked up any more."""
        self._looked_up.append(batch)
        self._last = batch

    def refused(self, batch: int) -> None:
        """Note that a planned batch is not looked up: it was refused."""
        self._last = batch

    def withdrawn(self) -> None:
        """Forget the batches that are not looked up, as the planner did."""
        self._batches = [batch for batch in self._batches if batch.number in self._looked_up]


_OF_BATCHES = {"steps", "overflow_batches", "late_batches"}
"""Counters of batches, which are the same in all caches of a collection; the others are summed over caches."""


@dataclass
class CacheCounters:
    """Sums since the last reset, with the names of `Counters`.

    Attributes:
        planning_wait_s: For all caches of a collection, kept by the first of them.
        by_table: Distinct rows and distinct rows that missed, by table name.
    """

    steps: int = 0
    lookups: int = 0
    unique_ids: int = 0
    unique_misses: int = 0
    lookup_misses: int = 0
    rows_fetched: int = 0
    rows_written_back: int = 0
    overflow_batches: int = 0
    late_batches: int = 0
    planning_wait_s: float = 0.0
    fetch_wait_s: float = 0.0
    write_back_wait_s: float = 0.0
    by_table: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, plan: Plan) -> None:
        """Count a lookup of a batch."""
        self.steps += 1
        self.lookups += plan.inverse.size
        self.unique_ids += plan.unique_ids
        self.unique_misses += plan.unique_misses
        self.lookup_misses += plan.lookup_misses
        self.overflow_batches += plan.overflow

    def count_by_table(self, plan: Plan, names: Sequence[str], starts: NDArray[np.int64]) -> None:
        """Count a batch's distinct rows by table. `starts`: the row at which each table starts, int64 `[tables]`."""
        table_of_row = np.searchsorted(starts, plan.rows, side="right") - 1
        seen = np.bincount(table_of_row, minlength=len(names))
        missed = np.bincount(table_of_row[plan.missed], minlength=len(names))
        for name, rows, misses in zip(names, seen.tolist(), missed.tolist(), strict=True):
            before = self.by_table.get(name, (0, 0))
            self.by_table[name] = (before[0] + rows, before[1] + misses)


def counters_of(caches: Sequence[tuple[CacheCounters, int]]) -> Counters:
    """`Counters` of several caches that serve the same batches, given with the bytes per record of each."""
    traffic = [one for one, _ in caches]
    names = {field.name for field in fields(CacheCounters)} - {"by_table"}
    return Counters(
        **{name: (max if name in _OF_BATCHES else sum)(getattr(one, name) for one in traffic) for name in names},
        bytes_fetched=sum(one.rows_fetched * record_bytes for one, record_bytes in caches),
        bytes_written_back=sum(one.rows_written_back * record_bytes for one, record_bytes in caches),
        per_table={name: pair for one in traffic for name, pair in one.by_table.items()} or None,
    )
