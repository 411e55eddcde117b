"""Whatever happens to the cache, in whatever order, it trains as a full table does and moves what it must.

The oracle for traffic is a cache of Python lists and sets, written from the rules alone:

- The first batch finds the slots filled with the rows of the highest scores, of equals the lower rows, in row order.
- A batch with more distinct rows than slots leaves the slots alone; its absent rows come and, if trained, go home.
- Else rows leave by lowest score, of equals by lower slot, none of the batch in hand; rows enter the free slots, lower
  rows into lower slots.
- Only a row changed since it was last written takes the way back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scenes import batch_of, evaluate, snapshot, spec_of, table, train

from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind, Rows
from systems.freq_cache.planner import Moves, Planner
from systems.freq_cache.policy import LFU, Policy, StaticFrequency

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class CacheOfLists:
    """The rules above, in plain Python."""

    def __init__(self, *, slots: int, scores: list[int], learns: bool) -> None:
        self.slots: list[int | None] = [None] * slots
        self.scores = list(scores)
        self.learns = learns
        self.dirty: set[int] = set()
        self.warm = False
        self.passing: list[int] = []
        self.unique_misses = self.fetched = self.written = 0

    def batch(self, ids: list[int], *, changes: bool) -> None:
        self.settle()
        if not self.warm:
            self.warm = True
            best = sorted(range(len(self.scores)), key=lambda row: (-self.scores[row], row))[: len(self.slots)]
            self.slots = [*sorted(best)]
        for row in ids if self.learns else []:
            self.scores[row] += 1
        wanted = set(ids)
        missing = sorted(wanted - set(self.slots))
        self.unique_misses += len(missing)
        self.fetched += len(missing)
        if len(wanted) > len(self.slots):
            self.passing = sorted(wanted) if changes else []
            return
        leaving = sorted((self.scores[row], slot) for slot, row in enumerate(self.slots) if row not in wanted)
        freed = sorted(slot for _, slot in leaving[: len(missing)])
        for slot, row in zip(freed, missing, strict=True):
            self.written += self.slots[slot] in self.dirty
            self.dirty.discard(self.slots[slot])
            self.slots[slot] = row
        if changes:
            self.dirty |= wanted

    def settle(self) -> None:
        """The rows of a batch that passed the slots by go home before anything else happens."""
        for row in self.passing:
            if row in self.slots:
                self.dirty.add(row)
            else:
                self.written += 1
        self.passing = []

    def flush(self) -> None:
        self.settle()
        self.dirty = set()

    def load(self, start: int, stop: int) -> None:
        self.settle()
        self.dirty -= set(range(start, stop))


TABLES = (table("left", 11, 4), table("right", 7, 4, "right_1", "right_2"))
ROWS, LEFT = 18, 11
BAGS = st.lists(st.lists(st.integers(0, 10), max_size=4), min_size=2, max_size=2)
SHORT_BAGS = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=2, max_size=2)
BATCH = st.fixed_dictionaries({"right_2": SHORT_BAGS, "left": BAGS, "right_1": SHORT_BAGS})
FREQUENCIES = st.lists(st.integers(0, 5), min_size=ROWS, max_size=ROWS)


class CacheBesideFullTable(RuleBasedStateMachine):
    """The cache, the same tables with every row in place, and the cache of lists, through one sequence of calls."""

    @initialize(
        slots=st.integers(1, ROWS),
        policy=st.sampled_from(["static", "lfu"]),
        kind=st.sampled_from([OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD]),
        scores=FREQUENCIES,
    )
    def build(self, slots: int, policy: str, kind: OptimizerKind, scores: list[int]) -> None:
        self.policy, self.kind, self.scores = policy, kind, scores
        self.cache, self.oracle = self.fresh(slots)
        full, spec = spec_of("full_gpu", device=DEVICE, tables=TABLES, kind=kind)
        self.full: EmbeddingSystem = full(spec)
        rows = torch.randn(LEFT, 4, generator=torch.Generator().manual_seed(0))
        for system in (self.cache, self.full):
            system.load_rows("left", 0, Rows(rows))
            system.load_rows("right", 0, Rows(rows[:7] + 1.0))
        self.step = 0

    def fresh(self, slots: int) -> tuple[EmbeddingSystem, CacheOfLists]:
        ratio = 1.0 if slots == ROWS else (slots + 0.5) / ROWS
        system, spec = spec_of(
            f"freq_cache[policy={self.policy}]",
            device=DEVICE,
            tables=TABLES,
            kind=self.kind,
            budget=CacheRatio(ratio=ratio),
        )
        scores = torch.tensor(self.scores)
        spec = replace(spec, frequencies={"left": scores[:LEFT], "right": scores[LEFT:]})
        learns = self.policy == "lfu"
        return system(spec), CacheOfLists(slots=slots, scores=[0] * ROWS if learns else self.scores, learns=learns)

    @property
    def tolerance(self) -> float:
        if DEVICE.type != "cpu":
            return 1e-3
        return 0.0 if self.kind is OptimizerKind.SGD else 1e-5

    def agree(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=self.tolerance)

    @rule(bags=BATCH)
    def train(self, bags: dict[str, list[list[int]]]) -> None:
        self.step += 1
        batch = batch_of(bags)
        self.oracle.batch(linear(bags), changes=True)
        self.agree(train(self.cache, batch, self.step), train(self.full, batch, self.step))

    @rule(bags=BATCH)
    def evaluate(self, bags: dict[str, list[list[int]]]) -> None:
        batch = batch_of(bags)
        self.oracle.batch(linear(bags), changes=False)
        with torch.no_grad():
            self.agree(self.cache(batch).values().cpu(), self.full(batch.to(DEVICE)).values().cpu())

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        self.oracle.flush()

    @rule(name=st.sampled_from(["left", "right"]), ids=st.lists(st.integers(0, 6), max_size=4))
    def read(self, name: str, ids: list[int]) -> None:
        rows = self.cache.read_rows(name, torch.tensor(ids, dtype=torch.int64))
        self.agree(rows.weights, self.full.read_rows(name, torch.tensor(ids, dtype=torch.int64)).weights)
        self.oracle.flush()

    @rule(name=st.sampled_from(["left", "right"]), start=st.integers(0, 6), data=st.data())
    def load(self, name: str, start: int, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, 7 - start))
        self.step += 1
        values = Rows(torch.full((count, 4), float(self.step)))
        self.cache.load_rows(name, start, values)
        self.full.load_rows(name, start, values)
        first = start + (LEFT if name == "right" else 0)
        self.oracle.load(first, first + count)

    @precondition(lambda self: self.step)
    @rule(slots=st.integers(1, ROWS))
    def save_and_go_on_elsewhere(self, slots: int) -> None:
        saved = self.cache.state_dict()
        self.cache, self.oracle = self.fresh(slots)
        self.cache.load_state_dict(saved)

    @invariant()
    def traffic_is_that_of_the_rules(self) -> None:
        if hasattr(self, "cache"):
            found = self.cache.counters()
            assert found.unique_misses == self.oracle.unique_misses
            assert found.rows_fetched == self.oracle.fetched == self.oracle.unique_misses
            assert found.rows_written_back == self.oracle.written

    def teardown(self) -> None:
        if not hasattr(self, "full"):
            return
        ours, theirs = snapshot(self.cache), snapshot(self.full)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            self.agree(value, theirs[name])


def linear(bags: dict[str, list[list[int]]]) -> list[int]:
    """Ids of all tables in one numbering, in the order of the tables."""
    starts = {"left": 0, "right_1": LEFT, "right_2": LEFT}
    return [starts[name] + i for name, feature in bags.items() for bag in feature for i in bag]


TestCacheBesideFullTable = CacheBesideFullTable.TestCase
TestCacheBesideFullTable.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


ID_BATCHES = st.lists(st.tuples(st.lists(st.integers(0, 14), max_size=12), st.booleans()), max_size=12)
POLICY = st.one_of(
    st.lists(st.integers(0, 6), min_size=15, max_size=15).map(lambda scores: StaticFrequency(torch.tensor(scores))),
    st.builds(LFU, st.just(15)),
)


def planned(planner: Planner, ids: list[int], *, changes: bool) -> Moves:
    return planner.plan(torch.tensor(ids, dtype=torch.int64), changes=changes)


def residents(planner: Planner) -> dict[int, int]:
    """Slot by row."""
    return {row: slot for slot, row in enumerate(planner.row_of_slot.tolist()) if row >= 0}


@FEW
@given(slots=st.integers(1, 15), policy=POLICY, warm=st.booleans(), batches=ID_BATCHES)
def test_index_stays_consistent_and_only_changed_rows_are_written_back(
    slots: int, policy: Policy, warm: bool, batches: list[tuple[list[int], bool]]
) -> None:
    planner = Planner(rows=15, slots=slots, policy=policy)
    if warm:
        planner.warm_up()
    changed: set[int] = set()
    for ids, changes in batches:
        before = residents(planner)
        moves = planned(planner, ids, changes=changes)
        now = residents(planner)

        assert now == {row: slot for row, slot in enumerate(planner.slot_of_row.tolist()) if slot >= 0}
        assert len(now) == len(set(now.values())) <= slots
        assert moves.unique_ids == len(set(ids))
        assert moves.missed_rows.tolist() == sorted(set(ids) - before.keys())
        assert moves.lookup_misses == sum(row not in before for row in ids)

        if moves.overflow_rows is not None:
            assert len(set(ids)) > slots
            assert before.items() <= now.items()
            assert moves.overflow_rows[moves.slots].tolist() == ids
        else:
            assert len(set(ids)) <= slots
            assert planner.row_of_slot[moves.slots].tolist() == ids  # all there, none evicted
            assert moves.fetch_rows.tolist() == moves.missed_rows.tolist()
            assert [now[row] for row in moves.fetch_rows.tolist()] == moves.fetch_slots.tolist()

        gone = before.keys() - now.keys()
        written = moves.write_back_rows.tolist()
        assert sorted(written) == sorted(gone & changed)
        assert [before[row] for row in written] == moves.write_back_slots.tolist()
        changed -= gone
        if changes and moves.overflow_rows is None:
            changed |= set(ids)
        assert {row for row, slot in now.items() if planner.dirty[slot]} == changed

    rows, where = planner.changed()
    assert set(rows.tolist()) == changed
    assert planner.row_of_slot[where].tolist() == rows.tolist()
    assert planner.changed()[0].numel() == 0


@FEW
@given(slots=st.integers(1, 15), policy=POLICY, batches=ID_BATCHES)
def test_no_row_leaves_while_an_idle_one_of_lower_score_stays(
    slots: int, policy: Policy, batches: list[tuple[list[int], bool]]
) -> None:
    planner = Planner(rows=15, slots=slots, policy=policy)
    planner.warm_up()
    for ids, changes in batches:
        before = residents(planner)
        planned(planner, ids, changes=changes)
        now = residents(planner)
        for gone in before.keys() - now.keys():
            for stayed in now.keys() & before.keys() - set(ids):
                rank = (policy.scores[gone].item(), before[gone])
                assert rank < (policy.scores[stayed].item(), before[stayed])


@FEW
@given(slots=st.integers(1, 15), scores=st.lists(st.integers(0, 6), min_size=15, max_size=15))
def test_static_policy_starts_with_the_most_frequent_rows(slots: int, scores: list[int]) -> None:
    planner = Planner(rows=15, slots=slots, policy=StaticFrequency(torch.tensor(scores)))
    rows, where = planner.warm_up()
    assert rows.tolist() == sorted(sorted(range(15), key=lambda row: (-scores[row], row))[:slots])
    assert where.tolist() == list(range(slots))
    assert planner.warm_up()[0].numel() == 0


@FEW
@given(
    scores=st.permutations(range(15)),
    batches=st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=3), max_size=12),
)
def test_static_policy_keeps_hot_rows_through_any_number_of_small_batches(
    scores: list[int], batches: list[list[int]]
) -> None:
    """Eight slots, at most three rows a batch: the five most frequent rows can never be among the victims."""
    planner = Planner(rows=15, slots=8, policy=StaticFrequency(torch.tensor(scores)))
    planner.warm_up()
    hottest = {row for row, score in enumerate(scores) if score >= 10}
    for ids in batches:
        planned(planner, ids, changes=True)
        assert hottest <= residents(planner).keys()


@FEW
@given(slots=st.integers(1, 15), policy=POLICY, batches=ID_BATCHES)
def test_evaluation_alone_writes_nothing_back(
    slots: int, policy: Policy, batches: list[tuple[list[int], bool]]
) -> None:
    planner = Planner(rows=15, slots=slots, policy=policy)
    for ids, _ in batches:
        assert planned(planner, ids, changes=False).write_back_rows.numel() == 0
    assert planner.changed()[0].numel() == 0


def test_counts_of_lfu_survive_eviction() -> None:
    planner = Planner(rows=6, slots=2, policy=LFU(6))
    planned(planner, [5, 5, 5, 4], changes=False)
    planned(planner, [0, 1], changes=False)  # both must leave, 5 with a count of 3
    assert residents(planner).keys() == {0, 1}
    planned(planner, [5], changes=False)
    planned(planner, [3], changes=False)  # 5 has 4 by now, the other resident 1
    assert residents(planner).keys() == {5, 3}


def test_row_evicted_and_wanted_next_batch_is_served_fresh() -> None:
    tables = (table("rows", 4, 4),)
    cache, spec = spec_of("freq_cache[policy=lfu]", device=DEVICE, tables=tables, budget=CacheRatio(ratio=0.25))
    full, full_spec = spec_of("full_gpu", device=DEVICE, tables=tables)
    ours, theirs = cache(spec), full(full_spec)
    for step, row in enumerate([0, 1, 0, 2, 0, 3, 3, 0]):
        batch = batch_of({"rows": [[row, row]]})
        torch.testing.assert_close(train(ours, batch, step), train(theirs, batch, step))
    found = ours.counters()
    assert (found.unique_misses, found.rows_written_back) == (6, 6)


@pytest.mark.parametrize("call", ["forward", "flush", "read", "load"])
def test_batch_that_waits_for_its_backward_is_not_overtaken(call: str) -> None:
    tables = (table("rows", 4, 4),)
    cache, spec = spec_of("freq_cache[policy=lfu]", device=DEVICE, tables=tables, budget=CacheRatio(ratio=0.25))
    system = cache(spec)
    pooled = system(batch_of({"rows": [[0]]})).values()
    calls = {
        "forward": lambda: evaluate(system, batch_of({"rows": [[1]]})),
        "flush": system.flush,
        "read": lambda: system.read_rows("rows", torch.arange(4)),
        "load": lambda: system.load_rows("rows", 0, Rows(torch.ones(1, 4))),
    }
    with pytest.raises(RuntimeError, match="waits for its backward"):
        calls[call]()
    pooled.sum().backward()
    calls[call]()


def test_batch_whose_outputs_are_dropped_is_not_waited_for() -> None:
    cache, spec = spec_of("freq_cache[policy=lfu]", device=DEVICE, tables=(table("rows", 4, 4),))
    system = cache(spec)
    system(batch_of({"rows": [[0]]}))
    evaluate(system, batch_of({"rows": [[1]]}))
    system.flush()
