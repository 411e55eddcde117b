"""A collection in the place of an `EmbeddingBagCollection`: first rows, state, models, memory, its end."""

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingBagCollection

from systems.contract import MemoryUse, Tier
from systems.freq_cache import LRU
from systems.freq_cache.initial_rows import first_rows_of
from tests.contract.scenes import assert_same, evaluate, snapshot, table
from tests.faults.freq_cache_training import ADAGRAD, SGD, TABLES, TWO_WIDTHS, Plain, batch, built, train


def test_first_rows_follow_from_the_seed_alone_whatever_the_tier(tmp_path: Path) -> None:
    tables = (*TABLES, table("tags", 50, 8, half=True))
    on_host = built(tables, seed=7)
    wanted = {}
    for number, one in enumerate(tables):
        rows = first_rows_of([one], seed=7, streams=[number])(torch.arange(one.num_embeddings))
        wanted[f"{one.name}.weight"] = rows.half().float() if one.name == "tags" else rows
    assert_same(snapshot(on_host), wanted)
    assert_same(snapshot(built(tables, seed=7, directory=tmp_path)), wanted)
    assert_same(snapshot(built(tables, seed=7, cache_rows={"users": 9}, policy="lru", look_ahead=2)), wanted)
    assert not torch.equal(snapshot(built(seed=8))["users.weight"], wanted["users.weight"])


def test_state_dict_is_that_of_an_embedding_bag_collection_both_ways() -> None:
    tables = [*TABLES, table("tags", 50, 12, half=True)]
    theirs, ours = EmbeddingBagCollection(tables=tables), built(tuple(tables))
    train(ours, range(2))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert_same({n: v.detach() for n, v in theirs.state_dict().items()}, ours.state_dict())
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.randn(weight.shape))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight)
        assert ours.state_dict()[name].dtype == weight.dtype
    features = batch(0, tuple(tables))
    torch.testing.assert_close(evaluate(ours, features), theirs(features).values().detach(), rtol=1e-3, atol=1e-3)


def test_policy_of_ones_own_is_made_for_the_rows_of_each_cache() -> None:
    asked: list[int] = []
    built(TWO_WIDTHS, policy=lambda rows: asked.append(rows) or LRU())
    assert asked == [60, 40]


def test_state_of_the_fused_optimizer_carries_its_hyper_parameters() -> None:
    first, second = built(), built()
    first.set_learning_rate(0.125)
    second.fused_optimizer.load_state_dict(first.fused_optimizer.state_dict())
    plain = Plain.of(second)
    plain.optimizer = replace(SGD, lr=0.125)
    train(second, range(2))
    plain.train(range(2))
    assert_same(snapshot(second), plain.rows())


def arrays(root: object, seen: dict[int, object] | None = None) -> Iterator[np.ndarray]:
    """Every array that an object holds, once."""
    seen = {} if seen is None else seen
    if id(root) in seen:
        return
    seen[id(root)] = root
    if isinstance(root, np.ndarray):
        yield root
    elif isinstance(root, dict):
        for value in root.values():
            yield from arrays(value, seen)
    elif isinstance(root, (list, tuple, set)) or type(root).__name__ == "deque":
        for value in root:
            yield from arrays(value, seen)
    elif hasattr(root, "__dict__"):
        yield from arrays(vars(root), seen)


def storage_bytes(*tensors: Tensor) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("ratio", [0.01, 0.4], ids=["batches overflow", "batches fit"])
def test_memory_is_what_the_live_arrays_take(on_disk: bool, ratio: float, tmp_path: Path) -> None:
    directory = tmp_path if on_disk else None
    collection = built(optimizer=ADAGRAD, cache_ratio=ratio, look_ahead=2, policy="lfu", directory=directory)
    train(collection, range(4))
    for step in (4, 5):
        collection.prefetch(batch(step))
    collection.flush()
    found, caches = collection.memory(), collection.caches
    weights = storage_bytes(*(cache.pool.weights for cache in caches))
    state = storage_bytes(*(values for cache in caches for values in cache.pool.state.values()))
    # fbgemm wants a row of its own for every table, beside those that they share
    spare = sum(len(cache.tables) - 1 for cache in caches)
    assert weights - found[Tier.DEVICE, MemoryUse.ROWS] == 8 * 4 * spare
    assert 0 <= state - found[Tier.DEVICE, MemoryUse.STATE] <= 8 * 4 * spare
    pools = [c.overflow_pool for c in caches if c.overflow_pool is not None]
    extra = [values for pool in pools for values in (pool.weights, *pool.state.values())]
    assert bool(extra) == (ratio == 0.01)
    assert found[Tier.DEVICE, MemoryUse.STAGING] >= storage_bytes(*extra) + 4 * 32
    planned = sum(array.nbytes for cache in caches for array in arrays(cache.planner))
    kept = sum(array.nbytes for cache in caches for array in arrays(cache.tier)) if on_disk else 0
    assert found[Tier.HOST, MemoryUse.INDEX] + found[Tier.HOST, MemoryUse.STAGING] == planned + kept
    slow = Tier.DISK if on_disk else Tier.HOST
    if on_disk:
        held = sum((tmp_path / f"cache_{at}" / "rows.bin").stat().st_size for at in range(len(caches)))
    else:
        held = storage_bytes(*(cache.tier.records for cache in caches))
    unfilled = held - found[slow, MemoryUse.ROWS] - found[slow, MemoryUse.STATE]
    assert 0 <= unfilled < (4096 * len(caches) if on_disk else 1)  # a file ends with a whole block


def test_dropped_collection_ends_its_threads_and_lets_go_of_its_rows_and_directory_at_once(tmp_path: Path) -> None:
    gc.collect()
    before = set(threading.enumerate())
    collection = built(look_ahead=2, directory=tmp_path, cache_ratio=0.2, policy="lru")
    train(collection, range(6))
    collection.commit()
    ours = [thread for thread in threading.enumerate() if thread not in before]
    assert {thread.name.split("_")[0] for thread in ours} >= {"cache-planning", "cache-writing"}
    gone, tier, rows = weakref.ref(collection), weakref.ref(collection.caches[0].tier), snapshot(collection)
    gc.disable()
    try:
        del collection
        assert (gone(), tier()) == (None, None)
    finally:
        gc.enable()
    for thread in ours:
        thread.join(10)
        assert not thread.is_alive()
    assert_same(snapshot(built(directory=tmp_path)), rows)
