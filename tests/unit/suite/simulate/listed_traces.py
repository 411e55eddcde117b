"""Traces written out batch by batch, made at random or by hand, and what a policy told one by one should add up to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from hypothesis import strategies as st

from suite.simulate.models.model import CacheModel, Setting, Span, Tally, replay
from suite.simulate.trace import Int64s, Trace
from systems.freq_cache.cache.plan import Ids


class ListedTrace(Trace):
    """Batches of rows numbered through, each a list in the order of tables; the frequencies are given or counted."""

    name = "listed"

    def __init__(
        self, tables: Sequence[int], batches: Sequence[Sequence[int]], frequencies: Sequence[int] | None = None
    ) -> None:
        self.tables = tuple((f"t{i}", rows) for i, rows in enumerate(tables))
        self.batches = batches
        self.length = len(batches)
        self.batch_lookups = max(map(len, batches), default=0)
        self._frequencies = frequencies

    @classmethod
    def of_ids(
        cls,
        tables: Sequence[int],
        batches: Sequence[Sequence[Sequence[int]]],
        frequencies: Sequence[int] | None = None,
    ) -> Self:
        """Batches given as the ids of each table."""
        starts = np.cumsum([0, *tables[:-1]])
        numbered = [
            [start + np.array(ids, np.int64) for start, ids in zip(starts, batch, strict=True)] for batch in batches
        ]
        return cls(tables, [np.concatenate(batch).tolist() for batch in numbered], frequencies)

    @cached_property
    def counts(self) -> list[int]:
        every = Counter(row for batch in self.batches for row in batch)
        return [every[row] for row in range(self.rows)] if self._frequencies is None else list(self._frequencies)

    def ids(self, index: int) -> Ids:
        rows = np.array(self.batches[index], np.int64)
        table = np.searchsorted(self.table_starts, rows, side="right") - 1
        assert (np.diff(table) >= 0).all(), "a batch must list its rows table after table"
        ends = np.searchsorted(table, np.arange(len(self.tables)), side="right")
        return Ids(rows - self.table_starts[table], ends.astype(np.int64), self.table_starts)

    def frequencies(self) -> list[Int64s]:
        return np.split(np.array(self.counts, np.int64), self.table_starts[1:])

    def only(self, table: int) -> "ListedTrace":
        """The rows of one table."""
        start, rows = int(self.table_starts[table]), range(self.tables[table][1])
        return ListedTrace(
            [len(rows)], [[row - start for row in batch if row - start in rows] for batch in self.batches]
        )

    def table_of(self, row: int) -> int:
        return int(np.searchsorted(self.table_starts, row, side="right")) - 1

    def distinct(self, index: int) -> list[int]:
        return list(dict.fromkeys(self.batches[index]))


@dataclass
class Step:
    """What one batch should do: the rows that were absent, and the rows moved."""

    missed: set[int]
    fetched: int
    back: int


@st.composite
def traces(draw: st.DrawFn, *, most_rows: int = 20, most_ids: int = 8, most_batches: int = 12) -> ListedTrace:
    tables = draw(st.lists(st.integers(1, most_rows), min_size=1, max_size=3))
    batches = draw(
        st.lists(
            st.tuples(*(st.lists(st.integers(0, rows - 1), max_size=most_ids) for rows in tables)).filter(any),
            min_size=1,
            max_size=most_batches,
        )
    )
    frequencies = draw(st.lists(st.integers(0, 5), min_size=sum(tables), max_size=sum(tables)))
    return ListedTrace.of_ids(tables, batches, frequencies)


def skewed_trace(*, tables: Sequence[int], batches: int, samples: int, seed: int = 0) -> ListedTrace:
    """A sample looks one row up in every table; low rows are popular."""
    generator = np.random.default_rng(seed)
    drawn = [[(size * generator.random(samples) ** 4).astype(np.int64) for size in tables] for _ in range(batches)]
    return ListedTrace.of_ids(tables, drawn)


def setting(trace: Trace, slots: int, counted_from: int = 0) -> Setting:
    return Setting(trace=trace, span=Span(counted_from=counted_from, stop=trace.length), slots=slots)


def assert_counts(model: CacheModel, steps: Sequence[Step], *, overflows: bool = True) -> Tally:
    """Replay a model and compare every counter with the batches told one by one."""
    trace, span = model.setting.trace, model.setting.span
    assert isinstance(trace, ListedTrace)
    tally = replay(model)
    counted = range(span.counted_from, span.stop)
    batches = [trace.batches[i] for i in counted]
    told = [steps[i] for i in counted]
    assert tally.batches == len(batches)
    assert tally.lookups == sum(map(len, batches))
    assert tally.unique_ids == sum(len(set(batch)) for batch in batches)
    assert tally.unique_misses == sum(len(step.missed) for step in told)
    absent = [sum(row in step.missed for row in batch) for batch, step in zip(batches, told, strict=True)]
    assert tally.lookup_misses == sum(absent)
    assert tally.rows_fetched == sum(step.fetched for step in told)
    assert tally.rows_written_back == sum(step.back for step in told)
    assert tally.overflow_batches == overflows * sum(len(set(batch)) > model.slots for batch in batches)
    assert tally.over_time == [(len(set(batch)), len(step.missed)) for batch, step in zip(batches, told, strict=True)]
    return tally
