"""Whatever happens to the cache, in whatever order, it trains as plain torch does and moves what its rules say.

Traffic is foretold by brute force: a planner of lists and sets for every cache, and the pipeline in front of them. Of
the numbers that train rows by SGD all are small multiples of a power of two, so that no sum is ever rounded and the
comparison is of bits.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from brute_force_planner import BruteForcePlan, BruteForcePlanner, ByFrequency, ByRecency, ByUse
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_training import PlainTraining
from scenes import batch_of, evaluate, spec_of, table, train
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

from systems.contract import CacheRatio, OptimizerKind, Rows, SparseOptimizer, Support, SystemSpec
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.host import HostTier
from systems.freq_cache.tiers.pinned import PinnedTier
from systems.freq_cache.tiers.slow_tier import SlowTier

pytestmark = pytest.mark.usefixtures("work_in_parts")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

TABLES = (
    table("users", 13, 8, "clicked", "bought"),
    table("colours", 5, 4),
    table("words", 11, 8, mean=True),
    table("shops", 9, 8),
)
"""Three caches, two widths: users and shops share one."""

HALF = (table("users", 13, 8, "clicked", "bought", half=True), *TABLES[1:3], table("shops", 9, 8, half=True))
NO_MEAN = tuple(t for t in TABLES if t.pooling is PoolingType.SUM)

RATES = {False: (0.5, 0.25), True: (0.125, 0.0625)}
"""Learning rates for fp32, and for fp16, where sums must stay smaller to be exact."""

WITHIN = 2e-5
WITHIN_HALF = 1e-2
"""As in the tests of every system: fp32 against float64, and fp16, which rounds after every step."""


class AnywherePinned(CachedEmbeddingBagCollection):
    """On a CPU, which it refuses, pinned rows go the way that they go on a GPU: through staging."""

    @classmethod
    def support(cls, spec: SystemSpec) -> Support:
        return Support()


@dataclass(frozen=True)
class Choices:
    """How a collection is built; whatever is chosen here must not be seen in what it trains."""

    policy: str
    look_ahead: int
    ratio: float
    own_rows: int | None
    tier: str
    batch_lookups: int


CHOICES = st.builds(
    Choices,
    policy=st.sampled_from(["static", "lfu", "lru"]),
    look_ahead=st.sampled_from([0, 1, 2, 4, 8]),
    ratio=st.sampled_from([0.001, 0.1, 0.3, 0.5, 0.7, 1.0]),
    own_rows=st.sampled_from([None, 1, 6]),
    tier=st.sampled_from(["host", "pinned", "file"]),
    batch_lookups=st.sampled_from([1, 16, 512]),
)


@dataclass
class Coming:
    """A batch on its way through the brute-force pipeline."""

    batch: KeyedJaggedTensor
    changes: bool
    entered: bool = False
    plans: list[BruteForcePlan] | None = None


@dataclass
class Foretold:
    """What the counters of a collection must say, and what it takes to know it."""

    tables: tuple[EmbeddingBagConfig, ...]
    choices: Choices
    frequencies: dict[str, list[int]]
    coming: list[Coming] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_table: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups: dict[object, list[EmbeddingBagConfig]] = {}
        for t in self.tables:
            own = t.name == "shops" and self.choices.own_rows is not None
            groups.setdefault((own, t.embedding_dim, t.pooling, t.data_type), []).append(t)
        self.groups = list(groups.values())
        self.planners = [self._planner(group) for group in self.groups]
        self.passing = [0] * len(self.groups)  # trained rows without a slot that have yet to go home
        self.warm = False

    def _planner(self, group: list[EmbeddingBagConfig]) -> BruteForcePlanner:
        rows = sum(t.num_embeddings for t in group)
        own = self.choices.own_rows if group[0].name == "shops" else None
        ranking = {
            "static": lambda: ByFrequency([count for t in group for count in self.frequencies[t.name]]),
            "lfu": ByUse,
            "lru": ByRecency,
        }[self.choices.policy]()
        return BruteForcePlanner(rows=rows, slots=own or max(1, int(rows * self.choices.ratio)), ranking=ranking)

    def announce(self, batch: KeyedJaggedTensor, *, changes: bool) -> None:
        self._warm_up()
        self.coming.append(Coming(batch, changes))
        self._enter_all()
        known = len(self.coming) - max(self.choices.look_ahead - 1, 0)  # so many have enough others behind them
        for coming in self.coming[: max(known, 0)]:
            if coming.plans is None:
                coming.plans = [planner.plan() for planner in self.planners]

    def look_up(self, batch: KeyedJaggedTensor, *, changes: bool) -> None:
        self._warm_up()
        self._go_home()
        if self.coming and self.coming[0].batch is batch:
            self._enter_all()
            now = self.coming.pop(0)
        else:
            self.finish()
            now = Coming(batch, changes)
            self._enter(now)
        plans = now.plans or [planner.plan() for planner in self.planners]
        self._move(plans)
        overflows = 0
        for at, plan in enumerate(plans):
            self.counts["lookups"] += len(plan.inverse)
            self.counts["unique_ids"] += len(plan.rows)
            self.counts["unique_misses"] += sum(plan.missed)
            self.counts["lookup_misses"] += sum(plan.missed[i] for i in plan.inverse)
            self.counts[f"overflow of {at}"] += plan.overflow
            self._count_by_table(self.groups[at], plan)
            if plan.overflow:
                self.counts["rows_fetched"] += plan.slots.count(-1)
                self.passing[at] = plan.slots.count(-1) if changes else 0
            overflows = max(overflows, self.counts[f"overflow of {at}"])
        self.counts["steps"] += 1
        self.counts["overflow_batches"] = overflows

    def finish(self) -> None:
        """What was planned is moved, and all that is announced will be planned anew."""
        self._go_home()
        for coming in self.coming:
            if coming.plans is not None:
                self._move(coming.plans)
            coming.entered, coming.plans = False, None
        for planner in self.planners:
            planner.withdraw()

    def flush(self) -> None:
        self.finish()
        for planner in self.planners:
            planner.changed()

    def load(self, name: str, start: int, count: int) -> None:
        self.finish()
        for group, planner in zip(self.groups, self.planners, strict=True):
            if name in [t.name for t in group]:
                first = start + first_row(group, name)
                planner.held(first, first + count)

    def _warm_up(self) -> None:
        for planner in self.planners:
            if not self.warm:
                self.counts["warm"] += len(planner.warm_up()[0])
        self.warm = True

    def _enter_all(self) -> None:
        for coming in self.coming:
            if not coming.entered:
                self._enter(coming)

    def _enter(self, coming: Coming) -> None:
        coming.entered = True
        parts = coming.batch.to_dict()
        for group, planner in zip(self.groups, self.planners, strict=True):
            ids = [
                first_row(group, t.name) + i
                for t in group
                for feature in t.feature_names
                for i in parts[feature].values().tolist()
            ]
            planner.announce(ids, changes=coming.changes)

    def _move(self, plans: Sequence[BruteForcePlan]) -> None:
        for plan in plans:
            self.counts["rows_fetched"] += len(plan.fetch_rows)
            self.counts["rows_written_back"] += len(plan.back_rows)

    def _go_home(self) -> None:
        self.counts["rows_written_back"] += sum(self.passing)
        self.passing = [0] * len(self.groups)

    def _count_by_table(self, group: list[EmbeddingBagConfig], plan: BruteForcePlan) -> None:
        for t in group:
            first = first_row(group, t.name)
            own = [missed for row, missed in zip(plan.rows, plan.missed, strict=True) if 0 <= row - first < rows_of(t)]
            seen, missed = self.by_table.get(t.name, (0, 0))
            self.by_table[t.name] = (seen + len(own), missed + sum(own))


def rows_of(t: EmbeddingBagConfig) -> int:
    return int(t.num_embeddings)


def first_row(group: list[EmbeddingBagConfig], name: str) -> int:
    """Where a table starts in the rows of its cache."""
    names = [t.name for t in group]
    return sum(rows_of(t) for t in group[: names.index(name)])


def drawn(tables: tuple[EmbeddingBagConfig, ...], seed: int, *, weighted: bool) -> KeyedJaggedTensor:
    """Two bags for every feature, of as many ids as a mean divides exactly, small ids more often; some are empty."""
    draw = random.Random(seed)
    longest = draw.choice([0, 1, 1, 2, 4])
    lengths, ids = [], []
    features = [(name, t) for t in tables for name in t.feature_names]
    draw.shuffle(features)
    for _, t in features:
        for _ in range(2):
            length = draw.choice([0, longest // 2, longest])
            lengths.append(length)
            ids += [int(rows_of(t) * draw.random() ** 2) for _ in range(length)]
    weights = torch.tensor([draw.choice([-1.0, 0.0, 0.5, 2.0]) for _ in ids]) if weighted else None
    names = [name for name, _ in features]
    return KeyedJaggedTensor(names, torch.tensor(ids, dtype=torch.int64), weights, lengths=torch.tensor(lengths))


def whole(shape: Sequence[int], seed: int, most: int = 2) -> Tensor:
    """Small whole numbers."""
    return torch.randint(-most, most + 1, tuple(shape), generator=torch.Generator().manual_seed(seed)).float()


class CacheBesidePlainTraining(RuleBasedStateMachine):
    """One sequence of calls: to the collection, to plain training, and to what foretells the traffic."""

    @initialize(
        choices=CHOICES,
        kind=st.sampled_from(
            [OptimizerKind.SGD, OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD]
        ),
        rows=st.sampled_from(["fp32", "fp32", "fp16", "weighted"]),
        frequencies=st.integers(0, 2**32),
    )
    def start(self, choices: Choices, kind: OptimizerKind, rows: str, frequencies: int) -> None:
        self.weighted, self.half = rows == "weighted", rows == "fp16"
        self.tables = {"fp32": TABLES, "fp16": HALF, "weighted": NO_MEAN}[rows]
        self.optimizer = SparseOptimizer(kind=kind, lr=RATES[self.half][0], eps=1e-8)
        draw = random.Random(frequencies)
        self.frequencies = {t.name: [draw.randrange(6) for _ in range(rows_of(t))] for t in self.tables}
        self.temporary: list[tempfile.TemporaryDirectory[str]] = []
        self.plain = PlainTraining(self.tables, self.optimizer)
        for number, t in enumerate(self.tables):
            self.plain.weights[t.name] = whole((rows_of(t), t.embedding_dim), number, 16).double() / 8
        self.steps = 0
        self.build(choices)
        self.plain.start(self.system)
        for t in self.tables:
            self.foretold.load(t.name, 0, rows_of(t))

    def build(self, choices: Choices) -> None:
        self.announced: list[tuple[KeyedJaggedTensor, bool]] = []
        self.choices = choices
        self.system = AnywherePinned(
            self.tables,
            optimizer=self.optimizer,
            cache_ratio=choices.ratio,
            cache_rows={} if choices.own_rows is None else {"shops": choices.own_rows},
            policy=choices.policy,
            look_ahead=choices.look_ahead,
            frequencies={name: torch.tensor(counts) for name, counts in self.frequencies.items()},
            is_weighted=self.weighted,
            device=DEVICE,
            batch_lookups=choices.batch_lookups,
            directory=self.directory() if choices.tier == "file" else None,
            pinned=choices.tier == "pinned",
        )
        self.system.set_learning_rate(self.plain.optimizer.lr)
        self.system.count_traffic(True)
        self.foretold = Foretold(self.tables, choices, self.frequencies)

    def directory(self) -> Path:
        self.temporary.append(tempfile.TemporaryDirectory())
        return Path(self.temporary[-1].name)

    def agree(self, ours: Tensor, theirs: Tensor) -> None:
        if self.optimizer.kind is OptimizerKind.SGD and not self.half:
            assert torch.equal(ours, theirs.float())
        else:
            within = WITHIN_HALF if self.half else WITHIN
            torch.testing.assert_close(ours, theirs.float(), rtol=within, atol=within)

    def announce(self, seed: int, *, trains: bool) -> None:
        batch = drawn(self.tables, seed, weighted=self.weighted)
        self.announced.append((batch, trains))
        with torch.set_grad_enabled(trains):
            self.system.prefetch(batch)
        self.foretold.announce(batch, changes=trains)

    def look_up(self, batch: KeyedJaggedTensor, *, trains: bool) -> None:
        self.steps += 1
        self.foretold.look_up(batch, changes=trains)
        with torch.set_grad_enabled(trains):
            pooled = self.system(batch).values()
        if not trains:
            self.agree(pooled.cpu(), self.plain.pooled(batch))
            return
        gradient = whole(pooled.shape, self.steps, 1 if self.half else 2)
        (pooled * gradient.to(DEVICE)).sum().backward()
        self.agree(pooled.detach().cpu(), self.plain.step(batch, gradient))

    @rule(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=6), trains=st.integers(0, 63))
    def go_on(self, seeds: list[int], trains: int) -> None:
        """Steps as a trainer takes them; a bit says whether a batch is trained or evaluated."""
        for at, seed in enumerate(seeds):
            trained = bool(trains >> at & 1) or at % 2 == 0
            if not self.choices.look_ahead:
                self.look_up(drawn(self.tables, seed, weighted=self.weighted), trains=trained)
                continue
            while len(self.announced) <= self.choices.look_ahead:
                self.announce(seed + len(self.announced), trains=trained)
            batch, changes = self.announced.pop(0)
            self.look_up(batch, trains=changes)

    @precondition(lambda self: len(self.announced) < self.choices.look_ahead)
    @rule(seed=st.integers(0, 2**32), trains=st.booleans())
    def announce_another(self, seed: int, trains: bool) -> None:
        self.announce(seed, trains=trains)

    @precondition(lambda self: self.announced)
    @rule()
    def look_up_an_announced_batch(self) -> None:
        batch, trains = self.announced.pop(0)
        self.look_up(batch, trains=trains)

    @precondition(lambda self: self.announced and self.announced[0][1])
    @rule()
    def only_evaluate_a_batch_that_was_to_be_trained(self) -> None:
        batch, _ = self.announced.pop(0)
        self.look_up(batch, trains=False)

    @rule(seed=st.integers(0, 2**32), trains=st.booleans())
    def look_up_a_batch_that_nobody_announced(self, seed: int, trains: bool) -> None:
        self.look_up(drawn(self.tables, seed, weighted=self.weighted), trains=trains)

    @rule(seed=st.integers(0, 2**32))
    def look_up_a_batch_and_drop_what_it_pooled(self, seed: int) -> None:
        batch = drawn(self.tables, seed, weighted=self.weighted)
        self.foretold.look_up(batch, changes=True)
        self.agree(self.system(batch).values().detach().cpu(), self.plain.pooled(batch))

    @rule()
    def flush(self) -> None:
        self.system.flush()
        self.foretold.flush()

    @rule(at=st.integers(0, 3), ids=st.lists(st.integers(0, 4), max_size=4))
    def read(self, at: int, ids: list[int]) -> None:
        name = self.tables[at % len(self.tables)].name
        rows = self.system.read_rows(name, torch.tensor(ids, dtype=torch.int64))
        self.foretold.flush()
        self.agree(rows.weights, self.plain.weights[name][ids])

    @rule(at=st.integers(0, 3), start=st.integers(0, 5), count=st.integers(0, 13), seed=st.integers(0, 2**32))
    def load_rows(self, at: int, start: int, count: int, seed: int) -> None:
        t = self.tables[at % len(self.tables)]
        count = min(count, rows_of(t) - start)
        values = whole((count, t.embedding_dim), seed, 16) / 8
        self.system.load_rows(t.name, start, Rows(values))
        self.foretold.load(t.name, start, count)
        where = slice(start, start + count)
        self.plain.weights[t.name][where] = values.double()
        self.plain.sums[t.name][where] = 0
        self.plain.squares[t.name][where] = 0

    @rule(second=st.booleans())
    def set_learning_rate(self, second: bool) -> None:
        lr = RATES[self.half][second]
        self.system.set_learning_rate(lr)
        self.plain.optimizer = replace(self.plain.optimizer, lr=lr)

    @rule(choices=CHOICES, by_directory=st.booleans())
    def save_and_go_on_elsewhere(self, choices: Choices, by_directory: bool) -> None:
        saved, directory = None, self.directory()
        if by_directory:
            self.system.save(directory)
        else:
            saved = self.system.state_dict()
        same_policy = choices.policy == self.choices.policy
        learnt = self.learnt()
        self.build(choices)
        if saved is None:
            self.system.load(directory)
            self.system.set_learning_rate(self.plain.optimizer.lr)
            if same_policy:
                self.restore(learnt)
        else:
            self.system.load_state_dict(saved)
        for t in self.tables:
            self.foretold.load(t.name, 0, rows_of(t))

    @rule(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
    def save_go_on_and_go_back(self, seeds: list[int]) -> None:
        """What was announced before stays announced."""
        directory = self.directory()
        self.system.save(directory)
        self.foretold.flush()
        before = {name: weights.clone() for name, weights in self.plain.weights.items()}
        sums = {name: values.clone() for name, values in self.plain.sums.items()}
        squares = {name: values.clone() for name, values in self.plain.squares.items()}
        learnt = self.learnt()
        for seed in seeds:
            self.look_up_a_batch_that_nobody_announced(seed, trains=True)
        self.system.load(directory)
        self.system.set_learning_rate(self.plain.optimizer.lr)
        self.plain.weights, self.plain.sums, self.plain.squares = before, sums, squares
        for t in self.tables:
            self.foretold.load(t.name, 0, rows_of(t))
        self.restore(learnt)

    def learnt(self) -> dict[tuple[str, int], int]:
        """What LFU has counted of every row, by table."""
        return {
            (t.name, i): planner.ranking.counts[first_row(group, t.name) + i]
            for group, planner in zip(self.foretold.groups, self.foretold.planners, strict=True)
            if isinstance(planner.ranking, ByUse)
            for t in group
            for i in range(rows_of(t))
        }

    def restore(self, learnt: dict[tuple[str, int], int]) -> None:
        for group, planner in zip(self.foretold.groups, self.foretold.planners, strict=True):
            if isinstance(planner.ranking, ByUse):
                for t in group:
                    for i in range(rows_of(t)):
                        planner.ranking.counts[first_row(group, t.name) + i] = learnt[t.name, i]

    @invariant()
    def traffic_is_as_foretold(self) -> None:
        if not hasattr(self, "system"):
            return
        found, expected = self.system.counters(), self.foretold.counts
        names = ["steps", "lookups", "unique_ids", "unique_misses", "lookup_misses"]
        names += ["rows_fetched", "rows_written_back", "overflow_batches"]
        assert {name: getattr(found, name) for name in names} == {name: expected[name] for name in names}
        assert (found.per_table or {}) == self.foretold.by_table

    def teardown(self) -> None:
        if not hasattr(self, "system"):
            return
        for name, weights in self.plain.weights.items():
            rows = self.system.read_rows(name, torch.arange(weights.shape[0]))
            self.agree(rows.weights, weights)
            assert rows.state.keys() == self.plain.state(name).keys()
            for state, values in self.plain.state(name).items():
                within = 1e-4 if self.half else WITHIN
                torch.testing.assert_close(rows.state[state], values.float(), rtol=within, atol=within)
        del self.system
        for directory in self.temporary:
            directory.cleanup()


TestCacheBesidePlainTraining = pytest.mark.slow(CacheBesidePlainTraining.TestCase)
TestCacheBesidePlainTraining.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_row_evicted_and_wanted_next_batch_is_served_fresh(device: torch.device) -> None:
    tables = (table("rows", 4, 4),)
    cache, spec = spec_of("freq_cache[policy=lfu]", device=device, tables=tables, budget=CacheRatio(ratio=0.25))
    full, full_spec = spec_of("full_gpu", device=device, tables=tables)
    ours, theirs = cache(spec), full(full_spec)
    for step, row in enumerate([0, 1, 0, 2, 0, 3, 3, 0]):
        batch = batch_of({"rows": [[row, row]]})
        torch.testing.assert_close(train(ours, batch, step), train(theirs, batch, step))
    found = ours.counters()
    assert (found.unique_misses, found.rows_written_back) == (7, 6)


@pytest.fixture
def one_slot(device: torch.device) -> Iterator[CachedEmbeddingBagCollection]:
    yield CachedEmbeddingBagCollection(
        (table("rows", 4, 4),),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5),
        cache_ratio=0.25,
        device=device,
        seed=None,
    )


@pytest.mark.parametrize("call", ["forward", "flush", "read", "load"])
def test_batch_that_waits_for_its_backward_is_not_overtaken(one_slot: CachedEmbeddingBagCollection, call: str) -> None:
    pooled = one_slot(batch_of({"rows": [[0]]})).values()
    calls = {
        "forward": lambda: evaluate(one_slot, batch_of({"rows": [[1]]})),
        "flush": one_slot.flush,
        "read": lambda: one_slot.read_rows("rows", torch.arange(4)),
        "load": lambda: one_slot.load_rows("rows", 0, Rows(torch.ones(1, 4))),
    }
    with pytest.raises(RuntimeError, match="waits for its backward"):
        calls[call]()
    pooled.sum().backward()
    calls[call]()


def test_batch_whose_outputs_are_dropped_is_not_waited_for(one_slot: CachedEmbeddingBagCollection) -> None:
    one_slot(batch_of({"rows": [[0]]}))
    evaluate(one_slot, batch_of({"rows": [[1]]}))
    one_slot.flush()


@pytest.mark.parametrize("tier", [HostTier, PinnedTier, FileTier])
def test_rows_on_their_way_back_are_fetched_when_they_are_home(
    tier: type[SlowTier], device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slot and a tier slow to write: every row was evicted by the batch before, or went past the slot."""
    cached = AnywherePinned(
        (table("rows", 4, 4),),
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
        cache_ratio=0.25,
        look_ahead=1,
        device=device,
        directory=tmp_path if tier is FileTier else None,
        pinned=tier is PinnedTier,
        seed=None,
    )
    write = tier.write

    def late(self: SlowTier, rows: Tensor, records: Tensor) -> None:
        time.sleep(0.03)
        write(self, rows, records)

    monkeypatch.setattr(tier, "write", late)
    times = [0, 0, 0, 0]
    for rows in ([0, 1, 2], [2], [1], [2], [1], [0, 2], [0], [2]):
        batch = batch_of({"rows": [rows]})
        cached.prefetch(batch)
        pooled = cached(batch).values()
        pooled.sum().backward()
        assert torch.equal(pooled.detach().cpu(), torch.full((1, 4), -1.0 * sum(times[row] for row in rows)))
        for row in rows:
            times[row] += 1


@pytest.mark.parametrize("trained", [False, True], ids=["never used", "used"])
def test_learning_rate_at_the_time_of_a_save_is_gone_on_with(
    one_slot: CachedEmbeddingBagCollection, trained: bool, tmp_path: Path
) -> None:
    for number, (saved, later) in enumerate([(0.5, 0.25), (0.125, 0.25)]):
        one_slot.set_learning_rate(saved)
        if trained:
            train(one_slot, batch_of({"rows": [[0]]}))
        one_slot.save(tmp_path / str(number))
        one_slot.set_learning_rate(later)
        if trained:
            train(one_slot, batch_of({"rows": [[0]]}))
        one_slot.load(tmp_path / str(number))
        assert one_slot.fused_optimizer.param_groups[0]["lr"] == saved
