"""The rules of the cache's planner once more, in lists, dicts and sets, looking at everything each time.

Nothing here is shared with the planner but the words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


def level(count: int) -> int:
    """A count below 32 is its own level; every doubling from there on has sixteen levels of equal width."""
    if count < 32:
        return count
    start, levels = 32, 32
    while count >= 2 * start:
        start, levels = 2 * start, levels + 16
    return levels + (count - start) * 16 // start


class Ranking(ABC):
    """What a policy thinks of rows."""

    fixed = False
    reinserts = False

    @abstractmethod
    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        """The key of every row of a batch, which occurs so often in it."""

    def best(self, rows: int) -> list[int]:
        """What to fill an empty cache with."""
        return []


class ByFrequency(Ranking):
    fixed = True

    def __init__(self, frequencies: Sequence[int]) -> None:
        self.frequencies = list(frequencies)

    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        return {row: level(min(self.frequencies[row], 2**31)) for row in occurrences}

    def best(self, rows: int) -> list[int]:
        by_rank = sorted(range(len(self.frequencies)), key=lambda row: (-level(min(self.frequencies[row], 2**31)), row))
        return by_rank[:rows]


class ByUse(Ranking):
    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        if learn:
            for row, count in occurrences.items():
                self.counts[row] = min(self.counts[row] + count, 65_535)
        return {row: level(self.counts[row]) for row in occurrences}


class ByRecency(Ranking):
    reinserts = True

    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        return dict.fromkeys(occurrences, 0)


@dataclass
class Announced:
    batch: int
    rows: list[int]
    inverse: list[int]
    changes: bool
    occurrences: dict[int, int]
    pins: bool = False


@dataclass
class BruteForcePlan:
    """What a `Plan` says, in lists; slots are -1 where an overflow batch has none."""

    batch: int
    rows: list[int]
    slots: list[int] = field(default_factory=list)
    missed: list[bool] = field(default_factory=list)
    inverse: list[int] = field(default_factory=list)
    fetch_rows: list[int] = field(default_factory=list)
    fetch_slots: list[int] = field(default_factory=list)
    back_rows: list[int] = field(default_factory=list)
    back_slots: list[int] = field(default_factory=list)
    fetch_after: list[int] = field(default_factory=list)
    overflow: bool = False


class BruteForcePlanner:
    def __init__(self, *, rows: int, slots: int, ranking: Ranking) -> None:
        self.slots = min(slots, rows)
        self.ranking = ranking
        self.row: list[int] = []  # of every slot in use
        self.slot: dict[int, int] = {}  # of every row that has one
        self.key: dict[int, int] = {}  # of every slot in use
        self.changed_slots: set[int] = set()
        self.queues: dict[int, dict[int, None]] = {}  # by key, the slots in its queue, in order
        self.used: set[int] = set()  # slots whose rows were used since they were queued
        self.until: dict[int, int] = {}  # pinned row: batch
        self.written_back_by: dict[int, int] = {}  # absent row: batch
        self.announced: list[Announced] = []
        self.batches = 0
        self.taken_back = 0  # how often the pins of a batch were

    def warm_up(self) -> tuple[list[int], list[int]]:
        if self.row or self.announced:
            return [], []
        best = self.ranking.best(self.slots)
        keys = self.ranking.keys(dict.fromkeys(best, 0), batch=0, learn=False)
        for slot, row in enumerate(best):
            self.row.append(row)
            self.slot[row] = slot
            self.key[slot] = keys[row]
            self._queue(slot)
        return best, list(range(len(best)))

    def announce(self, ids: Sequence[int], *, changes: bool) -> None:
        """`ids`: rows, feature after feature."""
        occurrences = Counter(ids)
        rows = list(occurrences)  # in order of first occurrence
        position = {row: at for at, row in enumerate(rows)}
        self.announced.append(Announced(self.batches, rows, [position[i] for i in ids], changes, occurrences))
        self.batches += 1
        self._pin()

    def plan(self) -> BruteForcePlan:
        batch = self.announced.pop(0)
        plan = BruteForcePlan(batch.batch, batch.rows, inverse=batch.inverse)
        plan.missed = [row not in self.slot for row in batch.rows]
        missing = [row for row in batch.rows if row not in self.slot]
        plan.overflow = len(batch.rows) > self.slots
        free = self.slots - len(self.row)
        plan.fetch_rows = missing[:free] if plan.overflow else missing
        plan.fetch_after = [self.written_back_by.get(row, -1) for row in plan.fetch_rows]
        keys = self.ranking.keys(batch.occurrences, batch=batch.batch, learn=batch.changes)

        plan.fetch_slots = list(range(len(self.row), len(self.row) + min(free, len(plan.fetch_rows))))
        victims = self._victims(len(plan.fetch_rows) - len(plan.fetch_slots), set(batch.rows))
        for slot in victims:
            self._leave(slot, plan)
            plan.fetch_slots.append(slot)
        for row, slot in zip(plan.fetch_rows, plan.fetch_slots, strict=True):
            if slot == len(self.row):
                self.row.append(row)
            self.row[slot] = row
            self.slot[row] = slot
            self.key[slot] = keys[row]
            self.written_back_by.pop(row, None)
        plan.slots = [self.slot.get(row, -1) for row in batch.rows]

        for row, slot in zip(batch.rows, plan.slots, strict=True):
            if self.until.get(row) == batch.batch:
                del self.until[row]
            if slot < 0:
                if batch.changes:
                    self.written_back_by[row] = batch.batch
                continue
            if not self.ranking.fixed:
                self.key[slot] = keys[row]
            if self._is_queued(slot):
                self.used.add(slot)
            elif row not in self.until:
                self._queue(slot)
            if batch.changes:
                self.changed_slots.add(slot)
        self._pin()
        return plan

    def withdraw(self) -> None:
        withdrawn, self.announced = self.announced, []
        for batch in withdrawn:
            self._unpin(batch)
        assert not self.until

    def changed(self) -> tuple[list[int], list[int]]:
        slots = sorted(self.changed_slots)
        return [self.row[slot] for slot in slots], slots

    def written(self, slots: Sequence[int]) -> None:
        self.changed_slots -= set(slots)

    def held(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        slots = [slot for slot, row in enumerate(self.row) if start <= row < stop]
        return [self.row[slot] for slot in slots], slots

    def _victims(self, wanted: int, in_hand: set[int]) -> list[int]:
        found = self._unpinned_victims(wanted, in_hand)
        for batch in reversed(self.announced):
            if len(found) < wanted:
                self._unpin(batch)
                self.taken_back += 1
                found += self._unpinned_victims(wanted - len(found), in_hand)
        assert len(found) == wanted
        return found

    def _unpinned_victims(self, wanted: int, in_hand: set[int]) -> list[int]:
        found: list[int] = []
        while len(found) < wanted and any(self.queues.values()):
            key = min(key for key, queue in self.queues.items() if queue)
            slot = next(iter(self.queues[key]))
            del self.queues[key][slot]
            if self.row[slot] in in_hand or self.row[slot] in self.until:
                continue
            if self.key[slot] > key or (slot in self.used and self.ranking.reinserts):
                self._queue(slot)
            else:
                found.append(slot)
        return found

    def _pin(self) -> None:
        for batch in self.announced[:255]:
            if not batch.pins:
                if sum(row in self.slot for row in self.until) + len(batch.rows) > self.slots:
                    break
                self.until |= dict.fromkeys(batch.rows, batch.batch)
                batch.pins = True

    def _unpin(self, batch: Announced) -> None:
        batch.pins = False
        for row in batch.rows:
            if self.until.get(row) == batch.batch:
                del self.until[row]
                if row in self.slot and not self._is_queued(self.slot[row]):
                    self._queue(self.slot[row])

    def _is_queued(self, slot: int) -> bool:
        return any(slot in queue for queue in self.queues.values())

    def _queue(self, slot: int) -> None:
        self.queues.setdefault(self.key[slot], {})[slot] = None
        self.used.discard(slot)

    def _leave(self, slot: int, plan: BruteForcePlan) -> None:
        del self.slot[self.row[slot]]
        if slot in self.changed_slots:
            self.changed_slots.remove(slot)
            plan.back_rows.append(self.row[slot])
            plan.back_slots.append(slot)
            self.written_back_by[self.row[slot]] = plan.batch
