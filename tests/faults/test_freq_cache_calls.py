"""Calls of the cache that are interrupted, refused or fail half-way, and the calls behind them."""

import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer, WorkingSetTooLarge
from systems.freq_cache import LFU, LRU, CachedEmbeddingBagCollection
from tests.conftest import CORES
from tests.contract.scenes import batch_of, table
from tests.faults.freq_cache_training import TWO_WIDTHS, batch, built, started, train

ROWS = (table("rows", 40, 4),)
PLAIN = SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0)


def of(*rows: int) -> KeyedJaggedTensor:
    return batch_of({"rows": [[row] for row in rows]})


def firsts(rows) -> list[float]:
    return rows[:, 0].tolist()


def interrupt_in(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_row_that_an_evaluated_batch_takes_back_at_once_is_not_read_before_it_is_written():
    """It leaves again without another write-back, while its first one still waits."""
    cache = built((table("rows", 4, 4),), optimizer=PLAIN, cache_ratio=0.25, look_ahead=1)
    tier = cache.caches[0].tier
    write = tier.write
    tier.write = lambda rows, records: (time.sleep(0.2), write(rows, records))
    for row, trains, wanted in ((0, True, 0.0), (1, True, 0.0), (0, False, -1.0), (2, True, 0.0), (0, True, -1.0)):
        features = of(row)
        with torch.set_grad_enabled(trains):
            cache.prefetch(features)
            pooled = cache(features).values()
        if trains:
            pooled.sum().backward()
        assert pooled[0, 0].item() == wanted
    assert firsts(cache.read_rows("rows", torch.tensor([0])).weights) == [-2.0]


def test_rows_read_ahead_for_an_evaluated_batch_are_those_that_are_written():
    """Of the two that it misses, the first leaves with the batch before, and the other was never changed."""
    torch.set_num_threads(CORES)  # the calls below read in this order
    cache = built(ROWS, optimizer=PLAIN, cache_ratio=0.1, look_ahead=1)
    cache(of(0, 1, 2, 3)).values().sum().backward()
    trained, evaluated = of(4, 5), of(0, 9)
    cache.prefetch(trained)
    with torch.no_grad():
        cache.prefetch(evaluated)
    cache(trained).values().sum().backward()
    with torch.no_grad():
        assert firsts(cache(evaluated).values()) == [-1.0, 0.0]


@pytest.mark.parametrize("saves", [False, True])
def test_an_interrupt_while_the_first_rows_are_chosen(saves: bool, tmp_path: Path):
    class Slow(LRU):
        def best(self, rows: int) -> np.ndarray:
            time.sleep(0.6)
            return np.arange(rows, dtype=np.int32)

    cache = started(ROWS, cache_ratio=0.25, look_ahead=2, policy=lambda rows: Slow())
    features = of(1, 2)
    interrupt_in(0.2)
    with pytest.raises(KeyboardInterrupt):
        cache(features)
    if saves:
        cache.save(tmp_path)
    assert firsts(cache(features).values()) == [0.5, 1.0]


def test_an_interrupt_while_announced_batches_are_forgotten():
    cache = started(ROWS, cache_ratio=0.5, look_ahead=4)
    batches = [of(row, row + 1) for row in (1, 5, 9)]
    for features in batches[:2]:
        cache.prefetch(features)
    withdraw = cache.caches[0].withdraw
    cache.caches[0].withdraw = lambda: (time.sleep(0.6), withdraw())
    interrupt_in(0.2)
    with pytest.raises(KeyboardInterrupt):
        cache.flush()
    cache.prefetch(batches[2])
    for features, row in zip(batches, (1, 5, 9), strict=True):
        assert firsts(cache(features).values()) == [row / 2, (row + 1) / 2]


def test_a_lookup_that_fails_after_its_rows_moved_leaves_no_backward_that_updates_others():
    cache = built(ROWS, optimizer=PLAIN, cache_ratio=0.1, lookups_per_backward=2)
    first = cache(of(0, 1)).values()
    ids, ones = torch.tensor([2, 3]), torch.tensor([1, 1])
    with pytest.raises(IndexError):
        cache(KeyedJaggedTensor(["rows"], ids, lengths=ones, inverse_indices=(["rows"], torch.tensor([[0, 9]]))))
    with pytest.raises(RuntimeError, match="still waits for its backward"):
        cache(of(4, 5))
    first.sum().backward()
    cache(of(4, 5)).values().sum().backward()
    assert firsts(cache.read_rows("rows", torch.tensor([0, 1, 4, 5])).weights) == [-1.0] * 4


def test_batches_that_may_share_a_backward_are_told_so_and_a_refused_one_is_forgotten():
    cache = built(ROWS, device_bytes=246, batch_lookups=4, lookups_per_backward=2)
    cache(of(0, 1, 2, 3)).values().sum().backward()
    with pytest.raises(WorkingSetTooLarge, match=r"batches that share a backward have more distinct rows .* slots, 6"):
        cache(of(4, 5, 6, 7))
    cache(of(0, 1)).values().sum().backward()
    assert cache.counters().steps == 2


def test_a_batch_that_one_cache_refuses_is_counted_by_none():
    cache, small = built(TWO_WIDTHS, device_bytes=1000), {"users": [[1]], "shops": [[1]]}
    for ids, refused in ((small, False), ({"users": [[1]], "shops": [list(range(40))]}, True), (small, False)):
        with pytest.raises(WorkingSetTooLarge) if refused else nullcontext():
            cache(batch_of(ids)).values().sum().backward()
    assert (cache.counters().steps, cache.counters().lookups) == (2, 4)


def test_an_announced_batch_known_again_in_a_copy_may_be_looked_up_again_after_a_refusal():
    cache = started(look_ahead=2)
    batches = [batch(0), batch(1)]
    for features in batches:
        cache.prefetch(features)
    pooled = cache(batches[0]).values()
    copy = KeyedJaggedTensor(batches[1].keys(), batches[1].values().clone(), lengths=batches[1].lengths().clone())
    with pytest.raises(RuntimeError, match="still waits for its backward"):
        cache(copy)
    pooled.sum().backward()
    cache(copy)


def test_closing_frees_the_rows():
    cache = started()
    cache.close()
    assert not cache.caches and not cache._cache_of_table


def test_a_directory_is_free_after_close_though_a_forked_process_lives(tmp_path: Path):
    cache = built(directory=tmp_path)
    loader = iter(DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))
    next(loader)
    cache.close()
    built(directory=tmp_path).close()


def test_an_interrupt_as_the_manifest_of_a_checkpoint_is_renamed_loses_neither(tmp_path: Path, monkeypatch):
    cache = started()
    train(cache, range(3))
    cache.save(tmp_path)
    train(cache, range(3, 5))
    replace = Path.replace

    def rename(path: Path, target: Path) -> Path:
        replace(path, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", rename)
        with pytest.raises(KeyboardInterrupt):
            cache.save(tmp_path)
    again = built()
    again.load(tmp_path)


def test_a_checkpoint_leaves_other_files_in_its_directory_alone(tmp_path: Path):
    names = ["table_1.parquet", "table_of_results.csv"]
    for name in names:
        (tmp_path / name).write_text("mine")
    started().save(tmp_path)
    assert [(tmp_path / name).read_text() for name in names] == ["mine", "mine"]


def test_sizes_that_numpy_made_are_saved_like_others(tmp_path: Path):
    config = EmbeddingBagConfig(name="a", feature_names=["a"], num_embeddings=np.array([3, 9]).max(), embedding_dim=8)
    choices = {"optimizer": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.1}, "cache_ratio": 0.5, "seed": np.int64(1)}
    CachedEmbeddingBagCollection([config], **choices).save(tmp_path / "saved")
    CachedEmbeddingBagCollection([config], **choices, directory=tmp_path / "kept").commit()


def test_keys_by_which_a_policy_ranks_rows_in_ram_are_checked(tmp_path: Path):
    class Mine(LFU):
        def keys_of_evicted(self, rows: np.ndarray) -> np.ndarray:
            return np.full(rows.size, 1 << 22, np.int32)

    cache = built(policy=Mine, directory=tmp_path, ram_bytes=5000)
    with pytest.raises(ValueError, match=r"keys_of_evicted.* returned 4194304"):
        train(cache, range(20))
