"""LRU, S3-FIFO and SIEVE over batches, told with lists, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

from listed_traces import ListedTrace, Step

from systems.freq_cache.planner.planner import Planner
from systems.freq_cache.planner.policy import LRU


class BruteForceQueues:
    """To write: `hit`, `admit` (the row has room) and `send_away` (returns nothing; exactly one row leaves)."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.in_hand: set[int] = set()

    @property
    def cached(self) -> set[int]:
        raise NotImplementedError

    def hit(self, row: int) -> None:
        raise NotImplementedError

    def admit(self, row: int) -> None:
        raise NotImplementedError

    def send_away(self) -> None:
        raise NotImplementedError

    def batch(self, rows: Sequence[int]) -> Step:
        self.in_hand = set(rows)
        missing = [row for row in rows if row not in self.cached]
        for row in rows:
            if row in self.cached:
                self.hit(row)
        back = 0
        for row in missing:
            full = len(self.cached) == self.slots
            if full and len(rows) > self.slots:
                back += 1  # trained past the cache
                continue
            self.admit(row)
            if len(self.cached) > self.slots:
                raise AssertionError("a row was admitted where there is no room")
            back += full
        assert len(rows) > self.slots or set(rows) <= self.cached
        return Step(set(missing), len(missing), back)


class BruteForceS3Fifo(BruteForceQueues):
    """Three lists, the oldest first."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghost: list[int] = []
        self.hits: dict[int, int] = {}
        self.main_slots = slots - max(1, slots // 10)
        self.ghosts = slots * 9 // 10

    @property
    def cached(self) -> set[int]:
        return {*self.small, *self.main}

    def hit(self, row: int) -> None:
        self.hits[row] = min(3, self.hits[row] + 1)

    def admit(self, row: int) -> None:
        known = row in self.ghost
        if known:
            self.ghost.remove(row)
        if len(self.cached) == self.slots:
            self.send_away()
        (self.main if known else self.small).append(row)
        self.hits[row] = 0

    def send_away(self) -> None:
        before = len(self.cached)
        while len(self.cached) == before:
            small = [row for row in self.small if row not in self.in_hand]
            main = [row for row in self.main if row not in self.in_hand]
            if not small or (main and len(self.main) > self.main_slots):
                self.send_away_from_main()
            else:
                self.send_away_from_small(small)

    def send_away_from_small(self, small: Sequence[int]) -> None:
        for row in small:
            self.small.remove(row)
            if self.hits[row] < 2:
                self.ghost = [*self.ghost, row][-self.ghosts :] if self.ghosts else []
                return
            self.main.append(row)
            self.hits[row] = 0

    def send_away_from_main(self) -> None:
        while True:
            row = next(row for row in self.main if row not in self.in_hand)
            self.main.remove(row)
            if self.hits[row] == 0:
                return
            self.hits[row] -= 1
            self.main.append(row)


class BruteForceSieve(BruteForceQueues):
    """A list, the oldest first, and the row at which the hand is; None: at the oldest."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.queue: list[int] = []
        self.marked: set[int] = set()
        self.hand: int | None = None

    @property
    def cached(self) -> set[int]:
        return set(self.queue)

    def hit(self, row: int) -> None:
        self.marked.add(row)

    def admit(self, row: int) -> None:
        if len(self.queue) == self.slots:
            self.send_away()
        self.queue.append(row)

    def send_away(self) -> None:
        at = 0 if self.hand is None else self.queue.index(self.hand)
        while self.queue[at] in self.in_hand or self.queue[at] in self.marked:
            if self.queue[at] not in self.in_hand:
                self.marked.remove(self.queue[at])
            at = (at + 1) % len(self.queue)
        self.hand = self.queue[at + 1] if at + 1 < len(self.queue) else None
        del self.queue[at]


class BruteForceLru(BruteForceQueues):
    """For batches of one distinct row each: no two rows are equally old."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.by_age: list[int] = []

    @property
    def cached(self) -> set[int]:
        return set(self.by_age)

    def hit(self, row: int) -> None:
        self.by_age.remove(row)
        self.by_age.append(row)

    def admit(self, row: int) -> None:
        if len(self.by_age) == self.slots:
            del self.by_age[0]
        self.by_age.append(row)


def told(trace: ListedTrace, policy: BruteForceQueues) -> list[Step]:
    return [policy.batch(trace.distinct(i)) for i in range(trace.length)]


def planned(trace: ListedTrace, slots: int) -> list[Step]:
    """What the planner does without look-ahead."""
    planner = Planner(rows=trace.rows, slots=slots, policy=LRU())
    steps = []
    for i in range(trace.length):
        planner.announce(trace.ids(i), changes=True)
        plan = planner.plan()
        past = int((plan.slots < 0).sum())
        assert bool(past) <= plan.overflow
        steps.append(
            Step(set(plan.rows[plan.missed].tolist()), plan.fetch_rows.size + past, plan.back_rows.size + past)
        )
    return steps
