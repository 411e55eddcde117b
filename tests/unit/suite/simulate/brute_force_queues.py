"""LRU, S3-FIFO, SIEVE, LFUDA and W-TinyLFU over batches, told with lists, one row at a time."""

from collections.abc import Sequence

import numpy as np
from listed_traces import ListedTrace, Step

from suite.simulate.models.queues.tinylfu import count, empty_sketch, estimate


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


class BruteForceLru(BruteForceQueues):
    """One list of rows, each queued at a batch: the first of the oldest batch leaves, unless a later one used it."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.now = 0
        self.last: dict[int, int] = {}
        self.queued: list[tuple[int, int]] = []

    @property
    def cached(self) -> set[int]:
        return set(self.last)

    def hit(self, row: int) -> None:
        self.last[row] = self.now

    def admit(self, row: int) -> None:
        if len(self.last) == self.slots:
            self.send_away()
        self.last[row] = self.now

    def send_away(self) -> None:
        while True:
            batch, row = oldest = min(self.queued, key=lambda queued: queued[0])
            self.queued.remove(oldest)
            if self.last[row] == batch:
                del self.last[row]
                return
            if row not in self.in_hand:
                self.queued.append((self.last[row], row))

    def batch(self, rows: Sequence[int]) -> Step:
        self.now += 1
        step = super().batch(rows)
        waiting = {row for _, row in self.queued}
        self.queued += [(self.now, row) for row in rows if row in self.last and row not in waiting]
        return step


class BruteForceS3Fifo(BruteForceQueues):
    """Three lists, the oldest first."""

    def __init__(self, slots: int, fill: str = "small") -> None:
        super().__init__(slots)
        self.fill = fill
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
        elif self.fill == "main" and len(self.small) == self.slots - self.main_slots:
            known = True  # or as good as known
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


class BruteForceLfuda(BruteForceQueues):
    """Keys by row, and the rows in the order of their last access; the age is the highest key that left."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.accesses: dict[int, int] = {}
        self.key: dict[int, int] = {}
        self.age = 0

    @property
    def cached(self) -> set[int]:
        return set(self.key)

    def hit(self, row: int) -> None:
        self.accesses[row] += 1
        del self.key[row]  # a dict keeps the order in which keys are set
        self.key[row] = self.accesses[row] + self.age

    def admit(self, row: int) -> None:
        if len(self.key) == self.slots:
            victim = min((row for row in self.key if row not in self.in_hand), key=self.key.__getitem__)
            self.age = max(self.age, self.key.pop(victim))
        self.accesses[row] = 1
        self.key[row] = 1 + self.age


class BruteForceTinyLfu(BruteForceQueues):
    """Three lists, the oldest first. Contests are judged by the model's own sketch, which has a test of its own."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.window: list[int] = []
        self.probation: list[int] = []
        self.protected: list[int] = []
        self.window_slots = max(1, slots // 100)
        self.protected_slots = (slots - self.window_slots) * 4 // 5
        self.sketch = empty_sketch(slots)

    @property
    def cached(self) -> set[int]:
        return {*self.window, *self.probation, *self.protected}

    def batch(self, rows: Sequence[int]) -> Step:
        for row in rows:
            count(self.sketch, np.int32(row))
        return super().batch(rows)

    def hit(self, row: int) -> None:
        if row in self.window:
            self.window.remove(row)
            self.window.append(row)
            return
        (self.probation if row in self.probation else self.protected).remove(row)
        self.protected.append(row)
        if len(self.protected) > self.protected_slots:
            self.probation.append(self.protected.pop(0))

    def admit(self, row: int) -> None:
        full = len(self.cached) == self.slots
        if full:
            self.send_away()
        self.window.append(row)
        if not full and len(self.window) > self.window_slots:
            self.probation.append(self.window.pop(0))

    def send_away(self) -> None:
        victims = [row for row in [*self.probation, *self.protected] if row not in self.in_hand]
        candidates = [row for row in self.window if row not in self.in_hand]
        if victims and len(self.window) < self.window_slots:
            candidates = []
        if victims and candidates:
            kept, gone = candidates[0], victims[0]
            if estimate(self.sketch, np.int32(kept)) > estimate(self.sketch, np.int32(gone)):
                self.window.remove(kept)
                self.probation.append(kept)
            else:
                gone = kept
        else:
            gone = (victims or candidates)[0]
        for part in (self.window, self.probation, self.protected):
            if gone in part:
                part.remove(gone)


def told(trace: ListedTrace, policy: BruteForceQueues) -> list[Step]:
    return [policy.batch(trace.distinct(i)) for i in range(trace.length)]
