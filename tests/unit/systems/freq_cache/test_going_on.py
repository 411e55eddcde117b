"""Going on after Ctrl-C, an error or a loop left early: rows stay those of plain training, or an error says so."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torchrec import KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.cache import loops
from systems.freq_cache.cache.cache import Cache
from systems.freq_cache.pipeline import PlanningFailed
from tests.contract.scenes import assert_same, batch_of, snapshot, table
from tests.faults.freq_cache_training import (
    TABLES,
    Plain,
    batch,
    built,
    failing_once,
    gradient,
    learn,
    plain_after,
    started,
    train,
)

ONE_TABLE = (table("rows", 200, 4),)


def step(collection: CachedEmbeddingBagCollection, plain: Plain, features: KeyedJaggedTensor, number: int) -> None:
    pooled = collection(features).values()
    learn(pooled, number)
    plain.step(features, gradient(number, pooled))


def test_ctrl_c_in_the_middle_of_a_plan_is_told_instead_of_training_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    collection = started()
    monkeypatch.setattr(loops, "admit", failing_once(loops.admit, KeyboardInterrupt(), at=3))
    with pytest.raises(KeyboardInterrupt):
        train(collection, range(6))
    with pytest.raises(PlanningFailed, match=r"it was interrupted.*load what was saved last"):
        collection(batch(1))


def test_first_filling_that_failed_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    collection = started(policy="static", frequencies={t.name: torch.arange(t.num_embeddings) for t in TABLES})
    monkeypatch.setattr(Cache, "_fetch", failing_once(Cache._fetch, OSError(5, "it was away")))
    with pytest.raises(OSError, match="it was away"):
        collection(batch(0))
    train(collection, range(5))
    assert_same(snapshot(collection), plain_after(5))


def test_write_back_that_is_tried_again_overwrites_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    collection, plain = started(ONE_TABLE, look_ahead=1, cache_ratio=0.16), Plain(ONE_TABLE)
    tier, late, failures = collection.caches[0].tier, threading.Event(), []
    write = tier.write

    def failing(rows: torch.Tensor, records: torch.Tensor) -> None:
        if threading.current_thread().name.startswith("cache-writing") and not failures:
            failures.append(None)
            late.wait(60)
            raise OSError(5, "for a moment")
        write(rows, records)

    monkeypatch.setattr(tier, "write", failing)
    first, second, third = (0, 1, 2, 3), (4, 5, 6, 7), (20, 21, 22, 23)
    kept = [*range(100, 128)]
    following = [batch_of({"rows": [[row] for row in (*kept, *ids)]}) for ids in (first, second, first, third, second)]
    for number, features in enumerate(collection.announced(following)):
        if number == len(following) - 1:
            late.set()
        step(collection, plain, features, number)
    assert failures
    assert_same(snapshot(collection), plain.rows())


@pytest.mark.parametrize("end", ["before a lookup", "after a lookup", "the source fails"])
def test_loop_that_ends_early_is_forgotten_and_the_next_looks_ahead_again(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    collection, plain = started(look_ahead=4), Plain()

    def source() -> Iterator[KeyedJaggedTensor]:
        yield from map(batch, range(5 if end == "the source fails" else 12))
        raise ValueError("the file ends here")

    with suppress(ValueError):
        for number, features in enumerate(collection.announced(source())):
            if number == 3 and end == "before a lookup":
                break
            step(collection, plain, features, number)
            if number == 3:
                break
    assert collection._pipeline.announced == 0
    announced = []
    prefetch = collection.prefetch
    monkeypatch.setattr(collection, "prefetch", lambda features: (announced.append(features), prefetch(features)))
    for number, features in enumerate(collection.announced(map(batch, range(20, 32)))):
        step(collection, plain, features, number)
    assert len(announced) == 12
    assert_same(snapshot(collection), plain.rows())


@pytest.mark.parametrize(
    "use",
    [
        lambda one, path: one.save(path),
        lambda one, path: one.state_dict(),
        lambda one, path: one.flush(),
        lambda one, path: one(batch(1)),
        lambda one, path: one.read_rows("users", torch.arange(3)),
    ],
    ids=["save", "state_dict", "flush", "forward", "read_rows"],
)
def test_collection_that_was_closed_says_so(tmp_path: Path, use: Callable[..., object]) -> None:
    collection = built()
    train(collection, range(1))
    collection.close()
    with pytest.raises(RuntimeError, match="the collection was closed: build another one"):
        use(collection, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_weights_of_any_type_pool_alike_in_training_and_after_it(dtype: torch.dtype) -> None:
    still = SparseOptimizer(kind=OptimizerKind.SGD, lr=0.0)
    collection = built(ONE_TABLE, is_weighted=True, optimizer=still, seed=0)
    weights = torch.tensor([1, 2, 3, 4]).to(dtype)
    features = KeyedJaggedTensor(["rows"], torch.arange(4), weights, lengths=torch.ones(4, dtype=torch.int64))
    trained = collection(features).values()
    trained.sum().backward()
    collection.eval()
    with torch.no_grad():
        assert torch.equal(collection(features).values(), trained.detach())


def test_rows_are_fp32_whatever_torch_makes_by_default() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        collection = built()
        train(collection, range(1))
        collection.eval()
        with torch.no_grad():
            assert collection(batch(0)).values().dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
