"""The simulated cache of fbgemm against its kernels retold, and against facts that are known of them."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from listed_traces import ListedTrace, setting

from suite.simulate.models.fbgemm import FbgemmCacheModel, sets_of
from suite.simulate.models.model import CannotReplay, RowBytes, Tally, replay
from systems.contract import OptimizerKind, SparseOptimizer

VARIANTS = [("lru", "off"), ("lru", "on"), ("lfu", "off")]


WARP = 32
MASK = 2**64 - 1


def murmur_set(row: int, sets: int) -> int:
    h = row
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = ((h ^ (h >> 33)) * factor) & MASK
    return (h ^ (h >> 33)) % sets


def exchange(keys: list[int], values: list[int], *, across: int, greater_half: int) -> tuple[list[int], list[int]]:
    """Every lane looks at `lane ^ across`; those with the bit `greater_half` keep the greater key of the two."""
    new_keys, new_values = [], []
    for lane in range(WARP):
        other = lane ^ across
        takes = keys[lane] < keys[other] if lane & greater_half else keys[lane] > keys[other]
        new_keys.append(keys[other] if takes else keys[lane])
        new_values.append(values[other] if takes else values[lane])
    return new_keys, new_values


def bitonic_sort(keys: Sequence[int]) -> tuple[list[int], list[int]]:
    """Keys ascending, and the lanes that they came from."""
    sorted_keys, lanes = list(keys), list(range(WARP))
    for length in (1, 2, 4, 8, 16):
        sorted_keys, lanes = exchange(sorted_keys, lanes, across=2 * length - 1, greater_half=length)
        for stride in (8, 4, 2, 1):
            if stride < length:
                sorted_keys, lanes = exchange(sorted_keys, lanes, across=stride, greater_half=stride)
    return sorted_keys, lanes


class BruteForceCache:
    """Counts what each kernel moves, and what `get_uvm_cache_stats` and the miss counter have."""

    def __init__(self, *, sets: int, policy: str, locks_lines: bool = False) -> None:
        self.policy = policy
        self.locks_lines = locks_lines
        self.state: list[list[int | None]] = [[None] * WARP for _ in range(sets)]
        self.stamps = [[0] * WARP for _ in range(sets)]
        self.locks = [[0] * WARP for _ in range(sets)]
        self.frequency: Counter[int] = Counter()
        self.timestep = 1
        self.moved: Counter[str] = Counter()
        self.prefetched: list[tuple[list[int], list[tuple[int, int] | None]]] = []

    def location(self, row: int) -> tuple[int, int] | None:
        chosen = murmur_set(row, len(self.state))
        ways = [way for way in range(WARP) if self.state[chosen][way] == row]
        assert len(ways) <= 1
        return (chosen, ways[0]) if ways else None

    def prefetch(self, ids: list[int]) -> None:
        self.timestep += 1
        if ids:
            absent = {row for row in ids if self.location(row) is None}
            self.moved["calls"] += 1
            self.moved["calls with misses"] += bool(absent)
            self.moved["unique misses"] += len(absent)
            self.moved["lookup misses"] += sum(row in absent for row in ids)
            self.populate(ids)
        locations = [self.location(row) for row in ids]
        self.prefetched.append((ids, locations))

    def populate(self, ids: list[int]) -> None:
        if self.policy == "lfu":
            self.frequency.update(ids)
        by_set = defaultdict(list)
        for row in sorted(set(ids)):
            found = self.location(row)
            if found is None:
                by_set[murmur_set(row, len(self.state))].append(row)
                continue
            chosen, way = found
            self.stamps[chosen][way] = self.timestep
            self.locks[chosen][way] += self.locks_lines
        insert = self.insert_lru if self.policy == "lru" else self.insert_lfu
        for chosen, newcomers in by_set.items():
            insert(chosen, newcomers)

    def insert_lru(self, chosen: int, newcomers: list[int]) -> None:
        times, ways = bitonic_sort(self.stamps[chosen])
        inserted = 0
        for turn in range(min(len(newcomers), WARP)):
            if self.locks_lines and self.locks[chosen][ways[turn]] > 0:
                continue
            if times[turn] == self.timestep:
                break
            self.replace(chosen, ways[turn], newcomers[inserted])
            self.stamps[chosen][ways[turn]] = self.timestep
            self.locks[chosen][ways[turn]] += self.locks_lines
            inserted += 1

    def insert_lfu(self, chosen: int, newcomers: list[int]) -> None:
        costs = [-1 if row is None else self.frequency[row] for row in self.state[chosen]]
        costs, ways = bitonic_sort(costs)
        by_rank = sorted(newcomers, key=lambda row: -self.frequency[row])  # stable, as the radix sort is
        for turn in range(min(len(by_rank), WARP)):
            if costs[turn] > self.frequency[by_rank[turn]]:
                break
            self.replace(chosen, ways[turn], by_rank[turn])

    def replace(self, chosen: int, way: int, row: int) -> None:
        self.moved["evicted"] += self.state[chosen][way] is not None
        self.moved["inserted"] += 1
        self.state[chosen][way] = row

    def forward_and_backward(self) -> None:
        ids, locations = self.prefetched.pop(0)
        self.moved["read in forward"] += locations.count(None)
        if self.locks_lines:
            for chosen, way in set(locations) - {None}:
                self.locks[chosen][way] -= 1
        self.moved["absent in forward"] += len({row for row in ids if locations[ids.index(row)] is None})
        self.moved["updated in backward"] += sum(self.location(row) is None for row in set(ids))


def replayed(trace: ListedTrace, *, slots: int, policy: str, prefetch: str = "off") -> tuple[FbgemmCacheModel, Tally]:
    model = FbgemmCacheModel(setting(trace, slots), {"policy": policy, "prefetch": prefetch})
    return model, replay(model)


def assert_equal_counters(trace: ListedTrace, *, slots: int, policy: str, prefetch: str) -> None:
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
