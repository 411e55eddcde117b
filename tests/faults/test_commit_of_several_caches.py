"""Caches of several widths in one directory commit together, whenever the process ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.saving import commits
from systems.freq_cache.tiers.file import FileTier
from systems.freq_cache.tiers.row_map import DamagedTier

pytestmark = pytest.mark.slow

ROWS = 40
TABLES = [
    EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=ROWS, embedding_dim=dim)
    for name, dim in (("narrow", 4), ("wide", 12))
]


class Killed(BaseException):
    """Stands for the end of the process."""


def opened(directory: Path) -> CachedEmbeddingBagCollection:
    return CachedEmbeddingBagCollection(
        TABLES,
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
        cache_ratio=0.1,
        directory=directory,
        seed=None,
    )


def train(collection: CachedEmbeddingBagCollection) -> None:
    """One step: every row of both tables falls by 1."""
    features = KeyedJaggedTensor(
        ["narrow", "wide"], torch.arange(ROWS).repeat(2), lengths=torch.ones(2 * ROWS, dtype=torch.int64)
    )
    collection(features).values().sum().backward()


def steps_held(collection: CachedEmbeddingBagCollection) -> list[float]:
    """How often the rows of each table were trained."""
    steps = []
    for table in TABLES:
        weights = collection.read_rows(table.name, torch.arange(ROWS)).weights
        assert (weights == weights[0, 0]).all()
        steps.append(-weights[0, 0].item())
    return steps


@pytest.mark.parametrize(
    ("owner", "name", "time", "counts"),
    [
        (FileTier, "prepare_commit", 1, False),
        (FileTier, "prepare_commit", 2, False),
        (commits, "write", 1, True),
        (FileTier, "finish_commit", 1, True),
        (FileTier, "finish_commit", 2, True),
    ],
)
def test_end_after_any_part_of_a_commit_leaves_all_caches_at_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, time: int, counts: bool
) -> None:
    collection = opened(tmp_path)
    train(collection)
    collection.commit()
    train(collection)
    original = getattr(owner, name)
    calls = 0

    def end(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        done = original(*arguments)
        if calls == time:
            raise Killed
        return done

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, end)
        with pytest.raises(Killed):
            collection.commit()
    collection.close()
    again = opened(tmp_path)
    assert steps_held(again) == ([2.0, 2.0] if counts else [1.0, 1.0])
    train(again)
    again.commit()
    again.close()
    last = opened(tmp_path)
    assert steps_held(last) == ([3.0, 3.0] if counts else [2.0, 2.0])
    last.close()


def test_directory_of_which_one_cache_was_put_back_is_refused(tmp_path: Path) -> None:
    collection = opened(tmp_path)
    train(collection)
    collection.commit()
    older = (tmp_path / "cache_1" / "map").read_bytes()
    train(collection)
    collection.commit()
    collection.close()
    (tmp_path / "cache_1" / "map").write_bytes(older)
    with pytest.raises(DamagedTier, match="committed 2 times, cache_1 in it holds commit 1: restore"):
        opened(tmp_path)


def test_number_of_commits_that_is_none_is_refused(tmp_path: Path) -> None:
    collection = opened(tmp_path)
    collection.commit()
    collection.close()
    (tmp_path / "commits").write_text("many")
    with pytest.raises(DamagedTier, match="commits is not the number of a commit"):
        opened(tmp_path)


def test_directory_is_free_again_when_its_collection_is_gone(tmp_path: Path) -> None:
    collection = opened(tmp_path)
    with pytest.raises(BlockingIOError, match="in use by another live process"):
        opened(tmp_path)
    del collection
    opened(tmp_path).close()
