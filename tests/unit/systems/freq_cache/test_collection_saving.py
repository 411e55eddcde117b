"""Checkpoints and commits of a collection: training resumes from them bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrec import EmbeddingBagConfig

from systems.freq_cache import CachedEmbeddingBagCollection
from tests.contract.scenes import assert_same, snapshot, table
from tests.unit.systems.freq_cache.collection_training import ADAGRAD, TABLES, batch, built, learn, train

GOES_ON = {
    "smaller, without look-ahead": {"cache_ratio": 0.1, "look_ahead": 0},
    "larger, further ahead": {"cache_ratio": 0.9, "look_ahead": 5},
    "another policy": {"policy": "lru", "look_ahead": 1},
    "slots of its own": {"cache_rows": {"shops": 7}},
    "on disk": {"directory": "rows", "look_ahead": 2},
}


@pytest.mark.parametrize("choices", GOES_ON.values(), ids=GOES_ON)
@pytest.mark.parametrize("back", [False, True], ids=["", "the other way"])
def test_saved_amid_an_epoch_goes_on_elsewhere_bit_for_bit(tmp_path: Path, choices: dict[str, Any], back: bool) -> None:
    if "directory" in choices:
        choices = {**choices, "directory": tmp_path / "rows"}
    here, there = {"optimizer": ADAGRAD, "look_ahead": 2}, {"optimizer": ADAGRAD, **choices}
    uninterrupted = built(optimizer=ADAGRAD)
    train(uninterrupted, range(12))
    saver = built(**(there if back else here))
    batches = [batch(step) for step in range(12)]
    for step in range(5):
        learn(saver(batches[step]).values(), step)
    if saver.look_ahead:
        for step in range(5, 6 + saver.look_ahead):
            saver.prefetch(batches[step])
    saver.save(tmp_path / "saved")
    loader = built(**(here if back else there), seed=99)
    loader.load(tmp_path / "saved")
    train(loader, range(5, 12))
    assert_same(snapshot(loader), snapshot(uninterrupted))
    for step in range(5, 12):
        learn(saver(batches[step]).values(), step)
    assert_same(snapshot(saver), snapshot(uninterrupted))


def learnt(collection: CachedEmbeddingBagCollection) -> list[np.ndarray]:
    return [cache.planner.policy.state for cache in collection.caches]


def test_counts_of_lfu_go_on_in_caches_of_other_tables(tmp_path: Path) -> None:
    first = built(policy="lfu")
    train(first, range(6))
    first.save(tmp_path)
    second = built(policy="lfu", cache_rows={"users": 40})
    second.load(tmp_path)
    occurrences = torch.cat([batch(step).to_dict()["shops"].values() for step in range(6)]).bincount(minlength=60)
    shops = second._cache_of_table["shops"]
    assert np.array_equal(shops.planner.policy.state, occurrences.numpy())
    assert sum(counts.sum() for counts in learnt(second)) == sum(counts.sum() for counts in learnt(first))


@pytest.mark.parametrize("tables", [TABLES[::-1], (table("clients", 200, 8, "clicked", "bought"), *TABLES[1:])])
def test_directory_of_other_tables_is_refused_whatever_their_sizes(
    tmp_path: Path, tables: tuple[EmbeddingBagConfig, ...]
) -> None:
    first = built(directory=tmp_path)
    first.commit()
    for cache in first.caches:
        cache.tier.close()
    with pytest.raises(ValueError, match="users"):
        built(tables, directory=tmp_path)
