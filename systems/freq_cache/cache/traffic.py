"""Counters of a cache."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from systems.contract import Counters
from systems.freq_cache.cache.plan import Plan

_OF_BATCHES = {"steps", "overflow_batches", "late_batches"}
"""Counters of batches, which are the same in all caches of a collection; the others are summed over caches."""


@dataclass
class Traffic:
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

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the counter `name`, also after an exception."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)

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


def counters_of(caches: Sequence[tuple[Traffic, int]]) -> Counters:
    """`Counters` of several caches that serve the same batches, given with the bytes per record of each."""
    traffic = [one for one, _ in caches]
    names = {field.name for field in fields(Traffic)} - {"by_table"}
    return Counters(
        **{name: (max if name in _OF_BATCHES else sum)(getattr(one, name) for one in traffic) for name in names},
        bytes_fetched=sum(one.rows_fetched * record_bytes for one, record_bytes in caches),
        bytes_written_back=sum(one.rows_written_back * record_bytes for one, record_bytes in caches),
        per_table={name: pair for one in traffic for name, pair in one.by_table.items()} or None,
    )
