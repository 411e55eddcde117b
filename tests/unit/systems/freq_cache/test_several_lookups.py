"""Several lookups before one backward, lookups that leave the cache as it is, and batches known by their ids."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist

from systems.contract import WorkingSetTooLarge
from systems.freq_cache import CachedEmbeddingBagCollection, CachedEmbeddingCollection
from tests.contract.scenes import assert_same, batch_of, snapshot, table
from tests.faults.freq_cache_training import SGD, Plain, batch, built, learn

ROWS = (table("rows", 40, 4),)


def rows_of(step: int, count: int = 4) -> KeyedJaggedTensor:
    draw = random.Random(step)
    return batch_of({"rows": [[draw.randrange(40)] for _ in range(count)]})


def together(collection: CachedEmbeddingBagCollection, batches: list[KeyedJaggedTensor]) -> None:
    """One backward for all of them, with whole numbers for gradients."""
    pooled = [collection(features).values() for features in batches]
    sum((one * (1 + at)).sum() for at, one in enumerate(pooled)).backward()


def plain_after(collection: CachedEmbeddingBagCollection, groups: list[list[KeyedJaggedTensor]]) -> dict[str, Tensor]:
    plain = Plain.of(collection)
    for batches in groups:
        for at, features in enumerate(batches):
            plain.step(features, torch.full(plain.pooled(features).shape, 1.0 + at))
    return plain.rows()


@pytest.mark.parametrize(("look_ahead", "lookups"), [(0, 3), (1, 2), (4, 3)])
def test_lookups_before_one_backward_train_as_plain_torch_does_while_rows_leave(look_ahead: int, lookups: int) -> None:
    ours = built(ROWS, cache_ratio=0.35, look_ahead=look_ahead, lookups_per_backward=lookups, policy="lru")
    groups = [[rows_of(10 * step + at) for at in range(lookups)] for step in range(30)]
    wanted = plain_after(ours, groups)
    coming: Iterator[KeyedJaggedTensor] = ours.announced(features for batches in groups for features in batches)
    for batches in groups:
        together(ours, [next(coming) for _ in batches])
    assert_same(snapshot(ours), wanted)
    found = ours.counters()
    assert (found.steps, found.lookups, found.overflow_batches) == (30 * lookups, 30 * lookups * 4, 0)
    assert found.rows_written_back > 30
    distinct = sum(len(features.values().unique()) for batches in groups for features in batches)
    assert found.unique_ids == distinct


def test_backward_of_one_lookup_may_come_while_the_next_waits() -> None:
    ours = built(ROWS, cache_ratio=0.35, lookups_per_backward=2, policy="lru")
    batches = [rows_of(step) for step in range(40)]
    wanted = plain_after(ours, [[features] for features in batches])
    waiting = None
    for features in batches:
        now = ours(features).values()
        if waiting is not None:
            waiting.sum().backward()
        waiting = now
    waiting.sum().backward()
    assert_same(snapshot(ours), wanted)


def test_one_lookup_too_many_is_refused_and_the_others_train() -> None:
    ours = built(ROWS, cache_ratio=0.3, lookups_per_backward=2)
    groups = [[rows_of(0), rows_of(1)], [rows_of(2)]]
    wanted = plain_after(ours, groups)
    pooled = [ours(features).values() for features in groups[0]]
    with pytest.raises(RuntimeError, match="build with lookups_per_backward"):
        ours(groups[1][0])
    (pooled[0].sum() + 2 * pooled[1].sum()).backward()
    together(ours, groups[1])
    assert_same(snapshot(ours), wanted)


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_lookups_that_exceed_the_slots_together_are_refused_and_the_first_of_them_trains(look_ahead: int) -> None:
    ours = built(ROWS, cache_ratio=0.15, look_ahead=look_ahead, lookups_per_backward=2)
    first, second = batch_of({"rows": [[0, 1, 2, 3]]}), batch_of({"rows": [[4, 5, 6, 7]]})
    wanted = plain_after(ours, [[first], [second]])
    for features in (first, second) if look_ahead else ():
        ours.prefetch(features)
    pooled = ours(first).values()
    with pytest.raises(WorkingSetTooLarge, match="more distinct rows of width 4 than the cache has slots, 6"):
        ours(second)
    pooled.sum().backward()
    together(ours, [second])
    assert_same(snapshot(ours), wanted)


def test_batch_larger_than_the_cache_must_be_alone() -> None:
    ours = built(ROWS, cache_ratio=0.05, lookups_per_backward=2)
    large, small = batch_of({"rows": [[0, 1, 2, 3]]}), batch_of({"rows": [[0]]})
    wanted = plain_after(ours, [[large], [small]])
    pooled = ours(large).values()
    with pytest.raises(RuntimeError, match="waits for its backward"):
        ours(small)
    pooled.sum().backward()
    together(ours, [small])
    assert_same(snapshot(ours), wanted)


# Lookups that leave the cache as it is


def test_lookups_after_eval_give_the_rows_as_they_are_and_move_none() -> None:
    for choices in ({}, {"look_ahead": 2}, {"cache_ratio": 0.02}, {"policy": "lru", "cache_ratio": 0.2}):
        ours = built(**choices)
        plain = Plain.of(ours)
        for step in range(4):
            learn(ours(batch(step)).values(), step)
            plain.train(range(step, step + 1))
        ours.flush()
        before = ours.counters()
        slots = [cache.planner._index.row_of.copy() for cache in ours.caches]
        ours.eval()
        with torch.no_grad():
            for step in range(10, 16):
                if ours.look_ahead:
                    ours.prefetch(batch(step))
                pooled = ours(batch(step))
                assert torch.equal(pooled.values(), plain.pooled(batch(step)).float())
        assert ours.counters() == before
        assert all((cache.planner._index.row_of == kept).all() for cache, kept in zip(ours.caches, slots, strict=True))
        ours.train()
        learn(ours(batch(4)).values(), 4)
        plain.train(range(4, 5))
        assert_same(snapshot(ours), plain.rows())


def test_evaluation_stands_between_a_lookup_and_its_backward_where_nothing_is_planned() -> None:
    ours = built()
    plain = Plain.of(ours)
    pooled = ours(batch(0)).values()
    ours.eval()
    with torch.no_grad():
        assert torch.equal(ours(batch(1)).values(), plain.pooled(batch(1)).float())
        with pytest.raises(IndexError, match="outside table users"):
            ours(batch_of({"users": [[999]], "from": [[]], "to": [[]]}))
    ours.train()
    learn(pooled, 0)
    plain.train(range(1))
    assert_same(snapshot(ours), plain.rows())


# Batches known by their ids


def copied(features: KeyedJaggedTensor, order: list[int] | None = None) -> KeyedJaggedTensor:
    again = KeyedJaggedTensor(features.keys(), features.values().clone(), lengths=features.lengths().clone())
    return again if order is None else again.permute(order)


def test_announced_batch_is_known_in_another_object_and_another_order_of_keys() -> None:
    ours = built(look_ahead=2)
    plain = Plain.of(ours)
    batches = [batch(step) for step in range(6)]
    for step, features in enumerate(batches):
        for coming in batches[step : step + 3] if step == 0 else batches[step + 2 : step + 3]:
            ours.prefetch(coming)
        again = copied(features, order=[2, 0, 1])
        assert ours._pipeline.announced == min(3, 6 - step)
        learn(ours(again).values(), step)
        assert ours._pipeline.announced == min(2, 5 - step)
        plain.train(range(step, step + 1))
    assert_same(snapshot(ours), plain.rows())


class Model(torch.nn.Module):
    def __init__(self, embeddings: Any, chosen: Any = lambda found: found.values()) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.chosen = chosen

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = self.chosen(self.embeddings(batch.sparse_features)).sum()
        return loss, loss


@pytest.mark.parametrize("pipeline", [TrainPipelineBase, TrainPipelineSparseDist])
def test_pipelines_of_torchrec_take_batches_ahead_of_their_lookups(pipeline: Any) -> None:
    ours = built(look_ahead=3)
    plain = Plain.of(ours)
    source = [Batch(torch.zeros(8, 1), batch(step), torch.zeros(8)) for step in range(8)]
    coming = ours.announced(iter(source), lambda one: one.sparse_features)
    dense = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    runs = pipeline(Model(ours), dense, torch.device("cpu"))
    for one in source:
        runs.progress(coming)
        plain.step(one.sparse_features, torch.ones_like(plain.pooled(one.sparse_features)))
    with pytest.raises(StopIteration):
        runs.progress(coming)
    assert ours.counters().steps == 8
    assert_same(snapshot(ours), plain.rows())


def test_sequence_is_a_leaf_where_a_model_is_traced() -> None:
    pages = EmbeddingConfig(name="page", embedding_dim=4, num_embeddings=9, feature_names=["page"])
    ours = CachedEmbeddingCollection([pages], optimizer=SGD, cache_ratio=0.5, lookups_per_backward=2)
    traced = torch.fx.symbolic_trace(Model(ours, lambda found: found["page"].values()))
    features = batch_of({"page": [[1, 2], [8]]})
    assert torch.equal(
        traced(Batch(torch.zeros(1), features, torch.zeros(1)))[0], ours(features)["page"].values().sum()
    )
