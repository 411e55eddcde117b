"""Random collections beside torchrec's own: none is refused, outputs and rows are equal.

Drawn are widths, poolings, types of rows, features that several tables share, weights, numbers of bags that differ by
feature, optimizers given torch's way, rates of single tables, several lookups before one backward, evaluation in
between, and how the cache is built.
"""

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.types import DataType

from systems.freq_cache import CachedEmbeddingBagCollection, CachedEmbeddingCollection

ARGUMENTS: dict[type[torch.optim.Optimizer], dict[str, float]] = {
    torch.optim.SGD: {"lr": 0.5},
    torch.optim.Adagrad: {"lr": 0.1, "eps": 1e-6},
    RowWiseAdagrad: {"lr": 0.1, "eps": 1e-6},
}
MOST = 100 if "CI" in os.environ else 200
FEATURES = [f"f{number}" for number in range(6)]


@dataclass
class Drawn:
    """A collection and its rival, with the same rows."""

    draw: random.Random
    pooled: bool
    weighted: bool
    half: bool
    lookups: int
    tables: list[EmbeddingBagConfig] | list[EmbeddingConfig]
    ours: Any
    theirs: Any
    optimizer: torch.optim.Optimizer


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    pooled, weighted = draw.random() < 0.75, draw.random() < 0.3
    half = draw.random() < 0.2 and not weighted  # torch has no weights for rows of fp16
    lookups = draw.choice([1, 1, 2, 3])
    optimizer = torch.optim.SGD if half or lookups > 1 else draw.choice(list(ARGUMENTS))
    width = draw.randint(1, 40)
    tables: list[Any] = []
    for number in range(draw.randint(1, 5)):
        common = {
            "name": f"t{number}",
            "num_embeddings": draw.randint(1, 60),
            "feature_names": draw.sample(FEATURES, draw.randint(1, 3)),
            "data_type": DataType.FP16 if half and draw.random() < 0.7 else DataType.FP32,
        }
        if not pooled:
            tables.append(EmbeddingConfig(embedding_dim=width, **common))
            continue
        pooling = PoolingType.MEAN if not weighted and draw.random() < 0.4 else PoolingType.SUM
        tables.append(
            EmbeddingBagConfig(embedding_dim=draw.choice([width, draw.randint(1, 24)]), pooling=pooling, **common)
        )
    own = {table.name: {"lr": 0.25} for table in tables if draw.random() < 0.2}
    choices: dict[str, Any] = {
        "optimizer": optimizer,
        "optimizer_kwargs": ARGUMENTS[optimizer],
        "table_kwargs": own,
        "cache_ratio": 1.0 if lookups > 1 else draw.choice([0.05, 0.3, 0.7, 1.0]),
        "policy": draw.choice(["lfu", "lru"]),
        "look_ahead": draw.choice([0, 1, 3]),
        "lookups_per_backward": lookups,
        "batch_lookups": draw.choice([16, 512]),
    }
    if pooled:
        ours = CachedEmbeddingBagCollection(tables, is_weighted=weighted, **choices)
        theirs = EmbeddingBagCollection(tables=tables, is_weighted=weighted)
    else:
        ours = CachedEmbeddingCollection(tables, need_indices=True, **choices)
        theirs = EmbeddingCollection(tables=tables, need_indices=True)
        assert (ours.embedding_dim(), ours.need_indices()) == (theirs.embedding_dim(), theirs.need_indices())
        assert ours.embedding_names_by_table() == theirs.embedding_names_by_table()
        assert ours.embedding_configs() == theirs.embedding_configs()
    theirs.load_state_dict({name: value for name, value in ours.state_dict().items() if name.endswith(".weight")})
    groups = [{"params": [p], **own.get(name.split(".")[1], {})} for name, p in theirs.named_parameters()]
    rival = optimizer(groups, **ARGUMENTS[optimizer])
    return Drawn(draw, pooled, weighted and pooled, half, lookups, tables, ours, theirs, rival)


def batch_for(case: Drawn) -> KeyedJaggedTensor:
    """Bags of 0 to 4 ids; keys in any order, some that no table has; half of the batches name distinct samples once."""
    draw = case.draw
    fewest = {name: min(t.num_embeddings for t in case.tables if name in t.feature_names) for name in features_of(case)}
    keys = draw.sample([*fewest, "nobody's"], len(fewest) + 1)
    samples, distinct = draw.randint(1, 5), draw.random() < 0.4
    bags = [draw.randint(1, samples) if distinct else samples for _ in keys]
    lengths = [draw.choice([0, 1, 1, 2, 4]) for count in bags for _ in range(count)]
    ids, at = [], 0
    for key, count in zip(keys, bags, strict=True):
        ids += [draw.randrange(fewest.get(key, 9)) for _ in range(sum(lengths[at : at + count]))]
        at += count
    values = torch.tensor(ids, dtype=draw.choice([torch.int64, torch.int32]))
    weights = torch.rand(len(ids)) + 0.5 if case.weighted else None
    strides: dict[str, Any] = {"stride_per_key_per_rank": [[count] for count in bags]} if distinct else {}
    if distinct and case.pooled:
        bag_of_sample = torch.tensor([[draw.randrange(count) for _ in range(samples)] for count in bags])
        strides["inverse_indices"] = keys, bag_of_sample
    return KeyedJaggedTensor(keys, values, weights, lengths=torch.tensor(lengths, dtype=torch.int64), **strides)


def features_of(case: Drawn) -> list[str]:
    return sorted({name for table in case.tables for name in table.feature_names})


def looked_up(case: Drawn, batch: KeyedJaggedTensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The values that both give, which agree, as do lengths and ids of sequences."""
    ours, theirs = case.ours(batch), case.theirs(batch)
    if case.pooled:
        assert ours.keys() == theirs.keys() == case.theirs._embedding_names
        values = {"pooled": ours.values()}, {"pooled": theirs.values()}
    else:
        assert list(ours) == list(theirs)
        for name, sequence in theirs.items():
            assert torch.equal(ours[name].lengths(), sequence.lengths())
            assert torch.equal(ours[name].weights(), sequence.weights())
        values = tuple({name: one.values() for name, one in given.items()} for given in (ours, theirs))
    agree(case, *values)
    return values


def agree(case: Drawn, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    within = 5e-3 if case.half else 1e-4
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name].detach().float(), value.detach().float(), rtol=within, atol=within)


@pytest.mark.parametrize(
    "seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, MOST))]
)
def test_collection_is_torchrecs_in_outputs_and_rows(seed: int) -> None:
    torch.manual_seed(seed)
    case = drawn(seed)
    batches = [[batch_for(case) for _ in range(case.lookups)] for _ in range(4)]
    coming = iter(case.ours.announced([batch for together in batches for batch in together]))
    for together in batches:
        losses = {"ours": torch.zeros(()), "theirs": torch.zeros(())}
        for batch in together:
            assert next(coming) is batch
            ours, theirs = looked_up(case, batch)
            for name, value in theirs.items():
                gradient = torch.randn(value.shape)
                losses["ours"] = losses["ours"] + (ours[name] * gradient).sum()
                losses["theirs"] = losses["theirs"] + (value * gradient).sum()
        case.optimizer.zero_grad()
        for loss in losses.values():
            if loss.requires_grad:
                loss.backward()
        case.optimizer.step()
        if case.draw.random() < 0.3:
            evaluate(case)
    agree(case, case.ours.state_dict(), case.theirs.state_dict())


def evaluate(case: Drawn) -> None:
    before = case.ours.counters()
    case.ours.eval()
    with torch.no_grad():
        looked_up(case, batch_for(case))
    case.ours.train()
    after = case.ours.counters()
    assert (after.steps, after.lookups, after.unique_ids) == (before.steps, before.lookups, before.unique_ids)
