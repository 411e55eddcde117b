"""The simulated cache of fbgemm against its kernels retold, and against facts that are known of them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from brute_force_fbgemm import BruteForceCache, murmur_set
from hypothesis import example, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, setting

from suite.simulate.models.fbgemm import FbgemmCacheModel, sets_of
from suite.simulate.models.model import CannotReplay, RowBytes, Tally, replay
from systems.contract import OptimizerKind, SparseOptimizer

VARIANTS = [("lru", "off"), ("lru", "on"), ("lfu", "off")]


def replayed(trace: ListedTrace, *, slots: int, policy: str, prefetch: str = "off") -> tuple[FbgemmCacheModel, Tally]:
    model = FbgemmCacheModel(setting(trace, slots), {"policy": policy, "prefetch": prefetch})
    return model, replay(model)


def assert_equal_counters(trace: ListedTrace, *, slots: int, policy: str, prefetch: str) -> Counter[str]:
    model, tally = replayed(trace, slots=slots, policy=policy, prefetch=prefetch)
    cache = BruteForceCache(sets=max(1, -(-slots // 32)), policy=policy, locks_lines=prefetch == "on")
    ahead = int(prefetch == "on")
    for index in range(trace.length + ahead):
        if index < trace.length:
            cache.prefetch(trace.batches[index])
        if index >= ahead and cache.prefetched:
            cache.forward_and_backward()
    moved = cache.moved
    assert model.cached_rows.tolist() == [[-1 if row is None else row for row in ways] for ways in cache.state]
    assert model.slots == 32 * len(cache.state)
    assert tally.batches == trace.length
    assert tally.lookups == sum(map(len, trace.batches))
    assert tally.unique_ids == sum(len(set(batch)) for batch in trace.batches)
    assert (tally.unique_misses, tally.lookup_misses) == (moved["unique misses"], moved["lookup misses"])
    assert tally.details == {
        "calls": moved["calls"],
        "calls_with_misses": moved["calls with misses"],
        "inserted": moved["inserted"],
        "evicted": moved["evicted"],
        "conflict_unique_misses": moved["absent in forward"],
        "conflict_lookups": moved["read in forward"],
        "conflict_updates": moved["updated in backward"],
    }
    assert tally.rows_fetched == moved["inserted"] + moved["read in forward"] + moved["updated in backward"]
    assert tally.rows_written_back == moved["evicted"] + moved["updated in backward"]
    return moved


@given(rows=st.lists(st.integers(0, 2**31 - 1), min_size=1), sets=st.integers(1, 2**26))
@example(rows=[0, 1, 2, 5, 900], sets=4)
def test_rows_hash_to_the_sets_that_fbgemm_chooses(rows: list[int], sets: int) -> None:
    """Source: `cache_slot` in fbgemm v1.8.0 `split_embeddings_cache/common.cuh`, computed by hand for one list."""
    found = sets_of(np.array(rows, np.int32), sets).tolist()
    assert found == [murmur_set(row, sets) for row in rows]
    if rows == [0, 1, 2, 5, 900] and sets == 4:
        assert found == [0, 0, 3, 1, 3]


def drawn(rng: np.random.Generator, tables: Sequence[int], sizes: Sequence[int], skew: float) -> list[list[int]]:
    """So many ids of each table, low ones more often."""
    return [(rng.random(n) ** skew * rows).astype(int).tolist() for n, rows in zip(sizes, tables, strict=True)]


@st.composite
def traces(draw: st.DrawFn) -> ListedTrace:
    """Few rows that come often, or many more than there is room for; in either case with many equal counts."""
    tables = draw(st.lists(st.sampled_from([1, 5, 40, 90, 300]), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    skew = draw(st.sampled_from([1.0, 2.0, 4.0]))
    most = draw(st.lists(st.sampled_from([0, 3, 40, 120]), min_size=1, max_size=12))
    batches = [drawn(rng, tables, rng.integers(0, n + 1, len(tables)).tolist(), skew) for n in most]
    return ListedTrace.of_ids(tables, batches)


@pytest.mark.parametrize(("policy", "prefetch"), VARIANTS)
@settings(max_examples=30)
@given(trace=traces(), slots=st.sampled_from([1, 32, 33, 64, 96, 130, 320]))
def test_every_counter_equals_that_of_the_kernels_retold(
    policy: str, prefetch: str, trace: ListedTrace, slots: int
) -> None:
    assert_equal_counters(trace, slots=slots, policy=policy, prefetch=prefetch)


@pytest.mark.parametrize(("policy", "prefetch"), VARIANTS)
@pytest.mark.parametrize("slots", [64, 320])
def test_counters_stay_equal_on_a_long_crowded_stream(policy: str, prefetch: str, slots: int) -> None:
    rng, tables = np.random.default_rng(3), (3000, 50)
    trace = ListedTrace.of_ids(tables, [drawn(rng, tables, (400, 30), 3) for _ in range(60)])
    moved = assert_equal_counters(trace, slots=slots, policy=policy, prefetch=prefetch)
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
    model, tally = replayed(ListedTrace([40], [[0, 0, 1], [0, 1, 2]]), slots=32, policy="lru")
    row = RowBytes(weights=64, optimizer=SparseOptimizer(kind=kind, lr=0.1, eps=1e-8), dim=16)
    fetched, written = model.bytes_moved(tally, row)
    assert fetched == 3 * 64 + 5 * state
    assert written == 5 * state


def test_what_fbgemm_has_no_cache_for_cannot_be_replayed() -> None:
    with pytest.raises(CannotReplay, match="policy=lru only"):
        replayed(ListedTrace([4], [[0]]), slots=32, policy="lfu", prefetch="on")
    with pytest.raises(CannotReplay, match="at most 16,777,214 sets"):
        replayed(ListedTrace([4], [[0]]), slots=32 * (2**24 - 1), policy="lfu")
