"""Input that the cache refuses, between batches that it trains on: these train as if the other had never come."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchrec import KeyedJaggedTensor

from systems.freq_cache import CachedEmbeddingBagCollection
from tests.contract.scenes import assert_same, snapshot
from tests.faults.freq_cache_training import TABLES, TWO_WIDTHS, batch, learn, plain_after, started

Keyed = KeyedJaggedTensor


def ids_of(features: Keyed) -> torch.Tensor:
    return features.values().clone()


def with_ids(features: Keyed, ids: torch.Tensor) -> Keyed:
    return Keyed(features.keys(), ids, lengths=features.lengths())


def with_lengths(features: Keyed, lengths: torch.Tensor) -> Keyed:
    return Keyed(features.keys(), features.values(), lengths=lengths)


def one_id(features: Keyed, number: int) -> Keyed:
    ids = ids_of(features)
    ids[ids.numel() // 2] = number
    return with_ids(features, ids)


def one_length(features: Keyed, at: int, by: int) -> Keyed:
    lengths = features.lengths().clone()
    lengths[at] += by
    return with_lengths(features, lengths)


def one_offset(features: Keyed, at: int, by: int) -> Keyed:
    offsets = features.offsets().clone()
    offsets[at] += by
    return Keyed(features.keys(), features.values(), offsets=offsets, stride=features.stride())


REFUSED: list[tuple[str, Callable[[Keyed], Any]]] = [
    ("id 1000000 is outside table", lambda good: one_id(good, 10**6)),
    ("id -1 is outside table", lambda good: one_id(good, -1)),
    ("id 1099511627776 is outside table", lambda good: one_id(good, 2**40)),
    ("ids are int64 or int32, not torch.float32", lambda good: with_ids(good, ids_of(good).float())),
    ("do not share out 30 ids", lambda good: one_length(good, -1, -1)),
    ("do not share out 30 ids", lambda good: one_length(good, -1, 1)),
    ("do not share out 30 ids", lambda good: one_length(one_length(good, 0, 3), 1, -3)),
    ("do not share out 30 ids", lambda good: one_offset(good, 0, 1)),
    ("do not share out 30 ids", lambda good: one_offset(good, -2, 10**6)),
    (
        "features of one name: users",
        lambda good: Keyed(["users"] * len(good.keys()), good.values(), lengths=good.lengths()),
    ),
    ("a batch is a KeyedJaggedTensor, not Tensor", lambda good: good.values()),
    (
        "weights, the tables were built without",
        lambda good: Keyed(good.keys(), good.values(), torch.ones(good.values().numel()), lengths=good.lengths()),
    ),
    ("has no feature to", lambda good: Keyed([*good.keys()[:-1], "other"], good.values(), lengths=good.lengths())),
    (
        "16 bags are not as many for each of 3 features",
        lambda good: with_lengths(good, torch.cat([good.lengths(), torch.zeros(1, dtype=torch.int64)])),
    ),
]
"""What is said of a batch of `TABLES`, and what makes it of one that is right."""


def tried(collection: CachedEmbeddingBagCollection, call: Callable[[Keyed], object], features: Any) -> bool:
    """Whether a call was refused, in words of ours or torchrec's."""
    try:
        call(features)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        assert "no longer knows" not in str(error)
        return True
    return False


@pytest.mark.parametrize("tables", [TABLES, TWO_WIDTHS], ids=["one cache", "two caches"])
@pytest.mark.parametrize("look_ahead", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_refused_input_leaves_no_trace_in_what_is_trained(look_ahead: int, seed: int, tables: tuple) -> None:
    draw = random.Random(seed)
    collection = started(tables, look_ahead=look_ahead)
    steps = 20
    coming: list[tuple[int | None, Any]] = []
    for step in range(steps):
        good = batch(step, tables)
        if draw.random() < 0.5:
            coming.append((None, draw.choice(REFUSED)[1](good)))
        coming.append((step, good))
    refused = announced = 0
    for at, (step, features) in enumerate(coming):
        while look_ahead and announced < len(coming) and announced <= at + look_ahead:
            if tried(collection, collection.prefetch, coming[announced][1]):
                assert coming[announced][0] is None
            announced += 1
        if step is None:
            assert tried(collection, collection, features)
            refused += 1
        else:
            learn(collection(features).values(), step)
        if draw.random() < 0.2:
            collection.flush()
    assert refused > 4
    assert_same(snapshot(collection), plain_after(steps, tables))


def test_each_kind_of_refused_input_is_refused_by_name() -> None:
    collection = started()
    for words, wrong in REFUSED:
        with pytest.raises((ValueError, TypeError, IndexError), match=words):
            collection(wrong(batch(0)))
