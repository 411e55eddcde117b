"""Whatever happens to the cache, in whatever order, it trains as plain torch does and moves what its rules say.

Traffic is foretold by brute force. Of the numbers that train rows by SGD all are small multiples of a power of two, so
that no sum is ever rounded and the comparison is of bits.
"""

import os
import random
import tempfile
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from brute_force_planner import ByUse
from foretold import CHOICES, TABLES, AnywherePinned, Choices, Foretold, drawn, first_row, rows_of, whole
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_training import PlainTraining
from scenes import batch_of, table
from torch import Tensor
from torchrec import KeyedJaggedTensor, PoolingType

from systems.contract import OptimizerKind, Rows, SparseOptimizer
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.slow_tier import HostTier, PinnedTier, SlowTier
from tests.conftest import CORES

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

HALF = (table("users", 13, 8, "clicked", "bought", half=True), *TABLES[1:3], table("shops", 9, 8, half=True))
NO_MEAN = tuple(t for t in TABLES if t.pooling is PoolingType.SUM)

RATES = {False: (0.5, 0.25), True: (0.125, 0.0625)}
"""Learning rates for fp32, and for fp16, where sums must stay smaller to be exact."""

WITHIN = 2e-5
WITHIN_HALF = 1e-2
"""As in the tests of every system: fp32 against float64, and fp16, which rounds after every step."""


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
        torch.set_num_threads(1 if choices.free_core else CORES)
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
            ram_bytes=choices.ram_bytes if choices.tier == "file" else 0,
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
        for values in self.plain.states[t.name].values():
            values[where] = 0

    @rule(second=st.booleans())
    def set_learning_rate(self, second: bool) -> None:
        lr = RATES[self.half][second]
        self.system.set_learning_rate(lr)
        self.plain.optimizer = replace(self.plain.optimizer, lr=lr)

    @rule(choices=CHOICES, by_directory=st.booleans())
    def save_and_go_on_elsewhere(self, choices: Choices, by_directory: bool) -> None:
        left, directory, learnt = self.system, self.directory(), self.learnt()
        if by_directory:
            left.save(directory)
        same_policy = choices.policy == self.choices.policy
        self.build(choices)
        if by_directory:
            self.system.load(directory)
            self.system.set_learning_rate(self.plain.optimizer.lr)
            if same_policy:
                self.restore(learnt)
        else:
            self.system.load_state_dict(left.state_dict())
        for t in self.tables:
            self.foretold.load(t.name, 0, rows_of(t))

    @rule(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
    def save_go_on_and_go_back(self, seeds: list[int]) -> None:
        """What was announced before stays announced."""
        directory = self.directory()
        self.system.save(directory)
        self.foretold.flush()
        before = deepcopy((self.plain.weights, self.plain.states))
        learnt = self.learnt()
        for seed in seeds:
            self.look_up_a_batch_that_nobody_announced(seed, trains=True)
        self.system.load(directory)
        self.system.set_learning_rate(self.plain.optimizer.lr)
        self.plain.weights, self.plain.states = before
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
            assert rows.state.keys() == self.plain.states[name].keys()
            for state, values in self.plain.states[name].items():
                within = 1e-4 if self.half else WITHIN
                torch.testing.assert_close(rows.state[state], values.float(), rtol=within, atol=within)
        del self.system
        for directory in self.temporary:
            directory.cleanup()


TestCacheBesidePlainTraining = pytest.mark.slow(CacheBesidePlainTraining.TestCase)
TestCacheBesidePlainTraining.settings = settings(
    max_examples=25 if "CI" in os.environ else 50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


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
