"""The simulated cache of fbgemm against its kernels retold, and against facts that are known of them."""

from collections import Counter

import numpy as np
import pytest
from brute_force_fbgemm import BruteForceCache, murmur_set
from hypothesis import example, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, setting

from suite.simulate.models.fbgemm import FbgemmCacheModel, cache_miss_counter, sets_of, uvm_cache_stats
from suite.simulate.models.model import CannotReplay, RowBytes, Tally, replay
from suite.simulate.trace import Trace
from systems.contract import OptimizerKind, SparseOptimizer

VARIANTS = [("lru", "off"), ("lru", "on"), ("lfu", "off")]


class WrittenTrace(ListedTrace):
    """Batches written out, each a list of ids for every table."""

    def __init__(self, tables: dict[str, int], batches: list[list[list[int]]]) -> None:
        super().__init__(list(tables.values()), ListedTrace.of_ids(list(tables.values()), batches).batches)

    def numbered(self, index: int) -> list[int]:
        return np.asarray(self.batches[index]).tolist()


def replayed(
    trace: Trace, *, slots: int, policy: str, prefetch: str = "off", counted_from: int = 0
) -> tuple[FbgemmCacheModel, Tally]:
    model = FbgemmCacheModel(setting(trace, slots, counted_from), {"policy": policy, "prefetch": prefetch})
    return model, replay(model)


def brute_force(trace: WrittenTrace, *, sets: int, policy: str, prefetch: str) -> BruteForceCache:
    cache = BruteForceCache(sets=sets, policy=policy, locks_lines=prefetch == "on")
    ahead = int(prefetch == "on")
    for index in range(trace.length + ahead):
        if index < trace.length:
            cache.prefetch(trace.numbered(index))
        if index >= ahead and cache.prefetched:
            cache.forward_and_backward()
    return cache


def assert_equal_counters(trace: WrittenTrace, *, slots: int, policy: str, prefetch: str) -> Counter[str]:
    model, tally = replayed(trace, slots=slots, policy=policy, prefetch=prefetch)
    cache = brute_force(trace, sets=max(1, -(-slots // 32)), policy=policy, prefetch=prefetch)
    moved = cache.moved
    assert model.cached_rows.tolist() == [[-1 if row is None else row for row in ways] for ways in cache.state]
    assert model.slots == 32 * len(cache.state)
    assert tally.batches == trace.length
    assert tally.lookups == sum(len(trace.numbered(i)) for i in range(trace.length))
    assert tally.unique_ids == sum(len(set(trace.numbered(i))) for i in range(trace.length))
    assert cache_miss_counter(tally) == tuple(cache.miss_counter)
    assert tally.lookup_misses == cache.lookup_misses
    assert tally.details["inserted"] == moved["inserted"]
    assert tally.details["evicted"] == moved["evicted"]
    assert tally.details["conflict_unique_misses"] == moved["absent in forward"]
    assert tally.details["conflict_lookups"] == moved["read in forward"]
    assert tally.details["conflict_updates"] == moved["updated in backward"]
    assert tally.rows_fetched == moved["inserted"] + moved["read in forward"] + moved["updated in backward"]
    assert tally.rows_written_back == moved["evicted"] + moved["updated in backward"]
    stats = list(uvm_cache_stats(tally).values())
    if policy == "lru":
        assert stats == cache.stats
    assert stats[5] == cache.stats[5]
    table_of = np.searchsorted(trace.table_starts, cache.missed_rows, side="right") - 1
    assert tally.by_table[:, 1].tolist() == np.bincount(table_of, minlength=len(trace.tables)).tolist()
    return moved


@given(rows=st.lists(st.integers(0, 2**31 - 1), min_size=1), sets=st.integers(1, 2**26))
@example(rows=[0, 1, 2, 5, 900], sets=4)
def test_rows_hash_to_the_sets_that_fbgemm_chooses(rows: list[int], sets: int) -> None:
    """Source: `cache_slot` in fbgemm v1.8.0 `split_embeddings_cache/common.cuh`, computed by hand for one list."""
    found = sets_of(np.array(rows, np.int32), sets).tolist()
    assert found == [murmur_set(row, sets) for row in rows]
    if rows == [0, 1, 2, 5, 900] and sets == 4:
        assert found == [0, 0, 3, 1, 3]


@st.composite
def traces(draw: st.DrawFn) -> WrittenTrace:
    """Few rows that come often, or many more than there is room for; in either case with many equal counts."""
    tables = {
        f"t{i}": rows
        for i, rows in enumerate(draw(st.lists(st.sampled_from([1, 5, 40, 90, 300]), min_size=1, max_size=3)))
    }
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    skew = draw(st.sampled_from([1.0, 2.0, 4.0]))
    batches = []
    for _ in range(draw(st.integers(1, 12))):
        most = draw(st.sampled_from([0, 3, 40, 120]))
        sizes = rng.integers(0, most + 1, len(tables))
        rows_of = tables.values()
        batches.append(
            [(rng.random(n) ** skew * rows).astype(int).tolist() for n, rows in zip(sizes, rows_of, strict=True)]
        )
    return WrittenTrace(tables, batches)


@pytest.mark.parametrize(("policy", "prefetch"), VARIANTS)
@settings(max_examples=30)
@given(trace=traces(), slots=st.sampled_from([1, 32, 33, 64, 96, 130, 320]))
def test_every_counter_equals_that_of_the_kernels_retold(
    policy: str, prefetch: str, trace: WrittenTrace, slots: int
) -> None:
    assert_equal_counters(trace, slots=slots, policy=policy, prefetch=prefetch)


@pytest.mark.parametrize(("policy", "prefetch"), VARIANTS)
@pytest.mark.parametrize("slots", [64, 320])
def test_counters_stay_equal_on_a_long_crowded_stream(policy: str, prefetch: str, slots: int) -> None:
    rng = np.random.default_rng(3)
    tables = {"big": 3000, "small": 50}
    batches = [
        [(rng.random(n) ** 3 * rows).astype(int).tolist() for n, rows in zip((400, 30), tables.values(), strict=True)]
        for _ in range(60)
    ]
    moved = assert_equal_counters(WrittenTrace(tables, batches), slots=slots, policy=policy, prefetch=prefetch)
    assert moved["evicted"] > 100  # or it would not be crowded


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (OptimizerKind.SGD, 0),
        (OptimizerKind.ROWWISE_ADAGRAD, 0),
        (OptimizerKind.ADAGRAD, 4 * 16),
        (OptimizerKind.ADAM, 8 * 16),
    ],
)
def test_optimizer_state_moves_past_the_cache_unless_it_is_one_number_per_row(kind: OptimizerKind, state: int) -> None:
    model, tally = replayed(WrittenTrace({"t": 40}, [[[0, 0, 1]], [[0, 1, 2]]]), slots=32, policy="lru")
    row = RowBytes(weights=64, optimizer=SparseOptimizer(kind=kind, lr=0.1, eps=1e-8), dim=16)
    fetched, written = model.bytes_moved(tally, row)
    assert fetched == 3 * 64 + 5 * state
    assert written == 5 * state


def test_what_fbgemm_has_no_cache_for_cannot_be_replayed() -> None:
    with pytest.raises(CannotReplay, match="policy=lru only"):
        replayed(WrittenTrace({"t": 4}, [[[0]]]), slots=32, policy="lfu", prefetch="on")
    with pytest.raises(CannotReplay, match="at most 16,777,214 sets"):
        replayed(WrittenTrace({"t": 4}, [[[0]]]), slots=32 * (2**24 - 1), policy="lfu")
