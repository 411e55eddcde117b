"""Replaying ids through simulated caches, building them included, beside `np.unique` over the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from turns import Side, Turns

from suite.simulate.models.model import Setting, Span, Tally, replay
from suite.simulate.models.registry import build, parse_policies
from suite.simulate.options import slots_of
from suite.simulate.trace import Trace, WorkloadTrace
from systems.freq_cache.cache.plan import Ids
from workloads.streams.synthetic import SyntheticWorkload

POLICIES = (
    "freq_cache[policy=static]",
    "freq_cache[policy=lru]",
    "fbgemm_uvm_caching[policy=lru]",
    "fbgemm_uvm_caching[policy=lfu]",
    "belady",
)
CACHE_RATIO = 0.05
SIZES = {True: (1_000_000, 2_048, 16), False: (20_000, 64, 3)}
"""Rows of all tables, samples per batch, and batches, at full size and in a test."""
ROUNDS = 15


class Held(Trace):
    """Some batches of a stream, made beforehand: a replay must not pay for making them."""

    def __init__(self, stream: WorkloadTrace, frequencies: list[npt.NDArray[np.int64]], batches: Sequence[Ids]) -> None:
        self.name = stream.name
        self.tables = stream.tables
        self.length = len(batches)
        self.batch_lookups = stream.batch_lookups
        self._frequencies = frequencies
        self._batches = batches

    def ids(self, index: int) -> Ids:
        return self._batches[index]

    def frequencies(self) -> list[npt.NDArray[np.int64]]:
        return self._frequencies


class Traces:
    """Traces of a synthetic stream, one after another; no batch is in two of them."""

    def __init__(self, *, rows: int, samples: int, batches: int) -> None:
        workload = SyntheticWorkload.create("criteo_kaggle", batch_size=samples, seed=0, max_rows=rows)
        self._stream = WorkloadTrace(workload)
        self._frequencies = self._stream.frequencies()
        self._batches = batches
        self._indices: Iterator[int] = iter(range(self._stream.length))
        self.lookups = batches * self._stream.batch_lookups

    def next_rows(self) -> tuple[list[npt.NDArray[np.int64]]]:
        """The rows of the next trace."""
        batches = [self._stream.ids(next(self._indices)) for _ in range(self._batches)]
        self._trace = Held(self._stream, self._frequencies, batches)
        return (self.rows(),)

    def rows(self) -> list[npt.NDArray[np.int64]]:
        """The rows of every batch of the last trace, numbered through all tables."""
        batches = [self._trace.ids(index) for index in range(self._trace.length)]
        return [batch.values + np.repeat(batch.starts, np.diff(batch.ends, prepend=0)) for batch in batches]

    def setting(self) -> tuple[Setting]:
        """That of a replay of the last trace."""
        span = Span(counted_from=0, stop=self._trace.length)
        return (Setting(trace=self._trace, span=span, slots=slots_of(self._trace.rows, CACHE_RATIO)),)

    def side(self, name: str, prepare: Callable[[], Sequence[Any]], run: Callable[..., Any]) -> Side:
        return Side(name=name, unit="ids", units=self.lookups, prepare=prepare, run=run, threads=1)


def distinct_rows(batches: Sequence[npt.NDArray[np.int64]]) -> int:
    return sum(np.unique(rows).size for rows in batches)


@pytest.fixture(scope="module")
def traces(full_size: bool) -> Traces:
    rows, samples, batches = SIZES[full_size]
    return Traces(rows=rows, samples=samples, batches=batches)


@pytest.mark.benchmark(group="simulator")
@pytest.mark.parametrize("name", POLICIES)
def test_replay(turns: Turns, traces: Traces, name: str) -> None:
    (policy, *_) = parse_policies(name)
    ours = traces.side(f"test_replay[{name}]", traces.setting, lambda setting: replay(build(policy, setting)))
    unique = traces.side("test_unique", traces.next_rows, distinct_rows)  # has its round first
    tally: Tally
    tally, distinct = turns.measure(ours, beside=unique, rounds=ROUNDS)
    assert tally.lookups == traces.lookups
    # both saw the same trace last
    assert tally.unique_ids == distinct == sum(len(set(rows.tolist())) for rows in traces.rows())
    assert 0 < tally.unique_misses < tally.unique_ids
