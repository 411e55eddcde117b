"""ColossalAI's cache, cDLRM's and a hot set, told with dicts and sorts over everything."""

import math
from collections import Counter

import numpy as np
from listed_traces import ListedTrace, Step


def by_frequency(trace: ListedTrace) -> list[int]:
    """All rows, the most frequent first."""
    return sorted(range(trace.rows), key=lambda row: (-trace.counts[row], row))


class TooManyRows(Exception):
    """The cache's assertion."""


class BruteForceColossalAI:
    """Slots of rows, each with a count; empty ones hold None."""

    def __init__(self, trace: ListedTrace, *, slots: int, policy: str) -> None:
        self.trace = trace
        self.policy = policy
        ranked = by_frequency(trace)
        self.rank = {row: rank for rank, row in enumerate(ranked)}
        warm = min(math.ceil(slots * 0.7), trace.rows)
        self.row: list[int | None] = [*ranked[:warm], *[None] * (slots - warm)]
        self.count = [0 if row is None else trace.counts[row] for row in self.row]

    def operation(self, accesses: list[int]) -> set[int]:
        """Bring rows in. Returns the missing ones."""
        occurrences = Counter(accesses)
        if len(occurrences) > len(self.row):
            raise TooManyRows
        missing = sorted(row for row in occurrences if row not in self.row)
        empty = [slot for slot, row in enumerate(self.row) if row is None]
        leaving = len(missing) - len(empty)
        if leaving > 0:
            may = [slot for slot, row in enumerate(self.row) if row is not None and row not in occurrences]
            for slot in sorted(may, key=self._worth)[:leaving]:
                self.row[slot] = None
        empty = [slot for slot, row in enumerate(self.row) if row is None]
        for slot, row in zip(empty, missing, strict=False):
            self.row[slot], self.count[slot] = row, 0
        for slot, row in enumerate(self.row):
            self.count[slot] += occurrences[row] if row is not None else 0
        return set(missing)

    def _worth(self, slot: int) -> tuple[int, int]:
        row = self.row[slot]
        assert row is not None
        return (-self.rank[row], 0) if self.policy == "dataset" else (self.count[slot], slot)

    def told(self) -> list[Step]:
        """What each batch does."""
        steps = []
        for batch in self.trace.batches:
            free = self.row.count(None)
            missing = self.operation(batch)
            steps.append(Step(missing, len(missing), max(0, len(missing) - free)))
        return steps


class BruteForceCDLRM:
    """A dict of ways for every set of every table. Every missing row of a window draws once, in ascending order."""

    def __init__(self, trace: ListedTrace, *, sets: int) -> None:
        self.trace = trace
        self.sets = [min(rows, sets) for _, rows in trace.tables]
        self.ways: dict[tuple[int, int], list[int | None]] = {
            (table, i): [None] * 16 for table, sets in enumerate(self.sets) for i in range(sets)
        }
        self.generator = np.random.default_rng(0)
        self.overwritten = 0

    def set_of(self, row: int) -> tuple[int, int]:
        table = self.trace.table_of(row)
        return table, (row - int(self.trace.table_starts[table])) % self.sets[table]

    def cached(self, row: int) -> bool:
        return row in self.ways[self.set_of(row)]

    def told(self, look_ahead: int) -> list[Step]:
        steps = []
        for first in range(0, self.trace.length, look_ahead):
            batches = self.trace.batches[first : first + look_ahead]
            steps += self.window([list(batch) for batch in batches])
        return steps

    def window(self, batches: list[list[int]]) -> list[Step]:
        needed = sorted({row for batch in batches for row in batch})
        absent = [row for row in needed if not self.cached(row)]
        before = {key: list(ways) for key, ways in self.ways.items()}
        drawn: dict[int, int] = {}
        for row, draw in zip(absent, self.generator.random(len(absent)), strict=True):
            open_ways = [way for way in range(16) if before[self.set_of(row)][way] not in needed]
            if open_ways:
                drawn[row] = open_ways[int(draw * len(open_ways))]
        for row, way in drawn.items():
            ways = self.ways[self.set_of(row)]
            self.overwritten += ways[way] in drawn
            ways[way] = row
        steps, entering = [], set(absent)
        for batch in batches:
            mine = entering & set(batch)
            entering -= mine
            auxiliary = [row for row in batch if not self.cached(row)]
            loaded = [row for row in mine if row in drawn]
            back = [row for row in loaded if before[self.set_of(row)][drawn[row]] is not None]
            steps.append(Step(mine | set(auxiliary), len(loaded) + len(auxiliary), len(back)))
        return steps


def hot_set(trace: ListedTrace, slots: int) -> list[Step]:
    hot = set(by_frequency(trace)[:slots])
    cold = [set(batch) - hot for batch in trace.batches]
    return [Step(rows, len(rows), len(rows)) for rows in cold]
