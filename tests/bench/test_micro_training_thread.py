"""Work of the cache on the training thread beside one gather of as many numbers as a batch of published size has ids.

What the other threads do is done between rounds, and rows are neither read, filled nor looked up: a step on a device
would wait for what is left. It does not depend on the size of the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from turns import Gather, Side, Turns

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection, base
from systems.freq_cache.cache.slot_table import SlotTable
from systems.threads import Task
from workloads.streams.synthetic import SyntheticWorkload

SIZES = {True: (2_000_000, 16_384), False: (50_000, 64)}
"""Rows of all tables, and samples per batch, at full size and in a test."""
DIM = 4
LOOK_AHEAD = 4
ROUNDS = 60
WARMUP_ROUNDS = 10
GATHER = "test_gather_of_published_size"
WAITING: deque[Task[Any]] = deque()


class BetweenRounds:
    """Stands in for a worker: what it is given waits until `work` is called, or is done at once."""

    at_once = False

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, work: Callable[[], Any]) -> Task[Any]:
        task = Task(work)
        if self.at_once:
            task.run()
        elif self._name == "cache-writing":  # rows have landed when the next batch is sent: it reads all of its own
            WAITING.appendleft(task)
        else:
            WAITING.append(task)
        return task

    def close(self) -> None:
        pass


def work() -> None:
    while WAITING:
        WAITING.popleft().run()


class Steps:
    """A collection whose batches are announced, and the slots that lookups were given."""

    def __init__(self, workload: SyntheticWorkload) -> None:
        tables = [
            EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=DIM)
            for name, rows in workload.tables
        ]
        self.ids = workload.batch_size * len(tables)
        self.collection = CachedEmbeddingBagCollection(
            tables,
            optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.1),
            cache_ratio=0.1,
            look_ahead=LOOK_AHEAD,
            batch_lookups=self.ids,
            frequencies=dict(workload.frequencies()),
        )
        self.slots: Tensor | None = None
        self._pooled = torch.zeros(workload.batch_size, DIM * len(tables))
        self._batches = (workload.batch(index).features for index in range(WARMUP_ROUNDS + ROUNDS + 9))
        self._coming = deque(next(self._batches) for _ in range(LOOK_AHEAD))
        BetweenRounds.at_once = True
        for features in self._coming:
            self.collection.prefetch(features)
        BetweenRounds.at_once = False

    def look_up(self, slots: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
        assert offsets is None
        self.slots = slots
        return self._pooled

    def prepare(self) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
        self._coming.append(next(self._batches))
        work()
        return self._coming.popleft(), self._coming[-1]

    def run(self, features: KeyedJaggedTensor, newest: KeyedJaggedTensor) -> tuple[KeyedJaggedTensor, Tensor]:
        self.collection.prefetch(newest)
        return features, self.collection(features).values()


@pytest.fixture
def steps(full_size: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    rows, samples = SIZES[full_size]
    monkeypatch.setattr(base, "Worker", BetweenRounds)
    made = Steps(SyntheticWorkload.create("criteo_kaggle", batch_size=samples, seed=0, max_rows=rows))
    monkeypatch.setattr(SlotTable, "read", lambda _, slots, records: records)
    monkeypatch.setattr(SlotTable, "fill", lambda _, slots, records: None)
    monkeypatch.setattr(SlotTable, "look_up", lambda _, *given: made.look_up(*given))
    yield made
    work()
    made.collection.close()


@pytest.mark.benchmark(group="training thread")
def test_training_thread(turns: Turns, full_size: bool, steps: Steps) -> None:
    gather = Gather(rows=SIZES[full_size][0], ids=steps.ids)
    ours = Side(
        name="test_training_thread",
        unit="ids",
        units=steps.ids,
        prepare=steps.prepare,
        run=steps.run,
    )
    (features, pooled), gathered = turns.measure(
        ours, beside=gather.side(GATHER), rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS
    )
    gather.check(gathered)
    (cache,) = steps.collection.caches
    assert pooled.shape == (SIZES[full_size][1], DIM * 26)
    # one slot for each distinct row of the batch that was looked up, and one row for each of its slots
    ids = features.values() + torch.from_numpy(cache._starts).repeat_interleave(SIZES[full_size][1])
    assert steps.slots is not None
    pairs = np.unique(np.stack([ids.numpy(), steps.slots.numpy()]), axis=1)
    assert pairs.shape[1] == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))
    counters = steps.collection.counters()
    assert counters.late_batches <= LOOK_AHEAD  # those planned before anything was trained
    assert 0 < counters.unique_misses <= counters.rows_fetched
