"""The rules of the cache's planner once more, in lists, dicts and sets, looking at everything each time.

Nothing here is shared with the planner but the words. What its rules leave open is settled here:

- A slot found in the queue of a key although an announced batch needs its row joins the end of that batch's queue; one
  whose row is in the batch in hand is left out, and queued when that batch has been planned.
- Victims are sought in rounds, each over as many slots as are still wanted; what was passed over queues behind the
  slots of its round. Which rows leave is the same one by one, which of their slots goes to which row is not: that is
  what `one_by_one` is for.
- Of withdrawn batches, the rows that only they kept from a key's queue join it, in the order in which they were named.
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
    def keys(self, occurrences: dict[int, int], *, batch: int, learn: bool) -> dict[int, int]:
        return dict.fromkeys(occurrences, batch)


@dataclass
class Announced:
    batch: int
    rows: list[int]
    inverse: list[int]
    changes: bool
    occurrences: dict[int, int]


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
    def __init__(self, *, rows: int, slots: int, ranking: Ranking, one_by_one: bool = False) -> None:
        self.slots = min(slots, rows)
        self.ranking = ranking
        self.one_by_one = one_by_one
        self.row: list[int] = []  # of every slot in use
        self.slot: dict[int, int] = {}  # of every row that has one
        self.key: dict[int, int] = {}  # of every slot in use
        self.changed_slots: set[int] = set()
        self.queued: dict[int, tuple[str, int]] = {}  # slot: the queue it is in
        self.queues: dict[tuple[str, int], list[int]] = {}
        self.written_back_by: dict[int, int] = {}  # absent row: batch
        self.announced: list[Announced] = []
        self.batches = 0

    def warm_up(self) -> tuple[list[int], list[int]]:
        if self.row or self.announced:
            return [], []
        best = self.ranking.best(self.slots)
        keys = self.ranking.keys(dict.fromkeys(best, 0), batch=0, learn=False)
        for slot, row in enumerate(best):
            self.row.append(row)
            self.slot[row] = slot
            self.key[slot] = keys[row]
            self._queue(slot, ("key", keys[row]))
        return best, list(range(len(best)))

    def announce(self, ids: Sequence[int], *, changes: bool) -> None:
        """`ids`: rows, feature after feature."""
        occurrences = Counter(ids)
        rows = list(occurrences)  # in order of first occurrence
        position = {row: at for at, row in enumerate(rows)}
        self.announced.append(Announced(self.batches, rows, [position[i] for i in ids], changes, occurrences))
        self.batches += 1

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
        for slot in self._victims(len(plan.fetch_rows) - len(plan.fetch_slots), set(batch.rows)):
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
            if slot < 0:
                if batch.changes:
                    self.written_back_by[row] = batch.batch
                continue
            if not self.ranking.fixed:
                self.key[slot] = keys[row]
            if self.queued.get(slot) == ("batch", batch.batch):
                self._unqueue(slot)
            if slot not in self.queued:
                self._queue(slot, self._queue_of(slot))
            if batch.changes:
                self.changed_slots.add(slot)
        return plan

    def withdraw(self) -> None:
        withdrawn, self.announced = self.announced, []
        for batch in withdrawn:
            for row in batch.rows:
                slot = self.slot.get(row)
                if slot is not None and self.queued[slot][0] == "batch":
                    self._unqueue(slot)
                    self._queue(slot, ("key", self.key[slot]))

    def changed(self) -> tuple[list[int], list[int]]:
        slots = sorted(self.changed_slots)
        return [self.row[slot] for slot in slots], slots

    def written(self, slots: Sequence[int]) -> None:
        self.changed_slots -= set(slots)

    def held(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        slots = [slot for slot, row in enumerate(self.row) if start <= row < stop]
        return [self.row[slot] for slot in slots], slots

    def _victims(self, wanted: int, in_hand: set[int]) -> list[int]:
        found: list[int] = []
        while len(found) < wanted:
            for slot in self._front(1 if self.one_by_one else wanted - len(found)):
                queue = self._unqueue(slot)
                now = self._queue_of(slot)
                if self.row[slot] in in_hand:
                    continue
                if queue[0] == "key" and (now[0] == "batch" or now[1] > queue[1]):
                    self._queue(slot, now)
                else:
                    found.append(slot)
        return found

    def _front(self, count: int) -> list[int]:
        """Slots by the order in which they leave: lowest key first, then the batch that comes last."""
        order = sorted(self.queues, key=lambda queue: (0, queue[1]) if queue[0] == "key" else (1, -queue[1]))
        return [slot for queue in order for slot in self.queues[queue]][:count]

    def _queue_of(self, slot: int) -> tuple[str, int]:
        needed = [batch.batch for batch in self.announced if self.row[slot] in batch.occurrences]
        return ("batch", needed[0]) if needed else ("key", self.key[slot])

    def _queue(self, slot: int, queue: tuple[str, int]) -> None:
        self.queued[slot] = queue
        self.queues.setdefault(queue, []).append(slot)

    def _unqueue(self, slot: int) -> tuple[str, int]:
        queue = self.queued.pop(slot)
        self.queues[queue].remove(slot)
        if not self.queues[queue]:
            del self.queues[queue]
        return queue

    def _leave(self, slot: int, plan: BruteForcePlan) -> None:
        del self.slot[self.row[slot]]
        if slot in self.changed_slots:
            self.changed_slots.remove(slot)
            plan.back_rows.append(self.row[slot])
            plan.back_slots.append(slot)
            self.written_back_by[self.row[slot]] = plan.batch
