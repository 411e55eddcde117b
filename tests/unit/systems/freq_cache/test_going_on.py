"""Going on after Ctrl-C, an error or a loop left early: rows stay those of plain training, or an error says so."""

import threading

import pytest
import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection
from systems.freq_cache.cache.mover import RowMover
from systems.freq_cache.cache.planner import Planner
from systems.freq_cache.pipeline import PlanningFailed
from systems.freq_cache.tiers import commits

ROWS, DIM, IDS = 200, 4, 16


def built(**changes):
    table = EmbeddingBagConfig(name="t", feature_names=["f"], num_embeddings=ROWS, embedding_dim=DIM)
    sgd = SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5)
    return CachedEmbeddingBagCollection(
        [table], **{"optimizer": sgd, "cache_ratio": 0.2, "batch_lookups": 64, "look_ahead": 0, **changes}
    )


def batch(*ids):
    return KeyedJaggedTensor(["f"], torch.tensor(ids), lengths=torch.ones(len(ids), dtype=torch.int64))


def batches(count, *, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return [batch(*torch.randint(0, ROWS, (IDS,), generator=draw).tolist()) for _ in range(count)]


def rows_of(collection):
    return collection.read_rows("t", torch.arange(ROWS)).weights.clone()


def train(collection, features):
    collection(features).values().sum().backward()


class Plain:
    """The rows as plain training leaves them."""

    def __init__(self, collection):
        self.rows = rows_of(collection)

    def train(self, features):
        ids = features.values()
        self.rows.index_add_(0, ids, torch.full((ids.numel(), DIM), -0.5))

    def agrees_with(self, collection):
        return torch.allclose(rows_of(collection), self.rows, atol=1e-5)


def failing_once(original, error, *, at=1):
    """As `original`, but the call of number `at` raises."""
    calls = []

    def call(*arguments, **named):
        calls.append(None)
        if len(calls) == at:
            raise error
        return original(*arguments, **named)

    return call


def trained_again(collection, features, plain, error):
    """Train on batches; where a lookup raises, ask again. Returns how often that was."""
    failures = 0
    for one in features:
        try:
            train(collection, one)
        except type(error):
            failures += 1
            train(collection, one)
        plain.train(one)
    return failures


def test_ctrl_c_in_the_middle_of_a_plan_is_told_instead_of_training_other_rows(monkeypatch):
    collection, interrupt = built(), KeyboardInterrupt()
    monkeypatch.setattr(Planner, "_choose", failing_once(Planner._choose, interrupt, at=3))
    with pytest.raises(KeyboardInterrupt):
        for one in batches(6):
            train(collection, one)
    with pytest.raises(PlanningFailed, match=r"it was interrupted.*load what was saved last"):
        train(collection, batch(1))


def test_first_filling_that_failed_is_done_again(monkeypatch):
    error = OSError(5, "it was away")
    collection = built(policy="static", frequencies={"t": torch.arange(ROWS)})
    plain = Plain(collection)
    monkeypatch.setattr(RowMover, "fill", failing_once(RowMover.fill, error))
    assert trained_again(collection, [batch(*range(ROWS - 20, ROWS)), *batches(4)], plain, error) == 1
    assert plain.agrees_with(collection)


def test_write_back_that_is_tried_again_overwrites_no_later_one(monkeypatch):
    collection = built(look_ahead=1, cache_ratio=0.16, policy="lru")
    plain, tier, late = Plain(collection), collection.caches[0].tier, threading.Event()
    write, failures = tier.write, []

    def failing(rows, records):
        if threading.current_thread().name.startswith("cache-writing") and not failures:
            failures.append(None)
            late.wait(60)
            raise OSError(5, "for a moment")
        write(rows, records)

    monkeypatch.setattr(tier, "write", failing)
    kept = range(100, 128)
    first, second, third = (0, 1, 2, 3), (4, 5, 6, 7), (20, 21, 22, 23)
    following = [batch(*kept, *ids) for ids in (first, second, first, third, second)]
    collection.prefetch(following[0])
    for number, one in enumerate(following):
        if number + 1 < len(following):
            collection.prefetch(following[number + 1])
        if number == len(following) - 1:
            late.set()
        train(collection, one)
        plain.train(one)
    assert failures
    assert plain.agrees_with(collection)


def left_before(collection, one, plain):
    """Leave the loop with a batch in hand that is not looked up."""


def left_after(collection, one, plain):
    train(collection, one)
    plain.train(one)


@pytest.mark.parametrize("last", [left_before, left_after])
def test_loop_that_was_left_early_is_forgotten_and_the_next_looks_ahead_again(monkeypatch, last):
    collection = built(look_ahead=4)
    plain = Plain(collection)
    for number, one in enumerate(collection.announced(batches(12))):
        if number == 3:
            last(collection, one, plain)
            break
        left_after(collection, one, plain)
    assert collection._pipeline.announced == 0
    announced = []
    prefetch = collection.prefetch
    monkeypatch.setattr(collection, "prefetch", lambda features: (announced.append(features), prefetch(features)))
    for one in collection.announced(batches(12, seed=2)):
        left_after(collection, one, plain)
    assert len(announced) == 12
    assert plain.agrees_with(collection)


def test_source_that_fails_leaves_nothing_announced():
    collection = built(look_ahead=2)
    plain = Plain(collection)

    def source():
        yield from batches(5)
        raise ValueError("the file ends here")

    with pytest.raises(ValueError, match="the file ends here"):
        for one in collection.announced(source()):
            left_after(collection, one, plain)
    for one in collection.announced(batches(5, seed=2)):
        left_after(collection, one, plain)
    assert plain.agrees_with(collection)


def test_commit_that_was_interrupted_when_it_counted_is_what_the_directory_opens_as(monkeypatch, tmp_path):
    collection = built(directory=tmp_path, cache_ratio=1.0)
    for one in batches(6):
        train(collection, one)
    collection.commit()
    for one in batches(6):
        train(collection, one)
    counted = rows_of(collection)
    interrupted = failing_once(commits.sync_directory, KeyboardInterrupt())
    monkeypatch.setattr(commits, "sync_directory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collection.commit()
    for one in batches(36):
        train(collection, one)
        collection.flush()
    collection.close()
    assert torch.equal(rows_of(built(directory=tmp_path)), counted)


@pytest.mark.parametrize(
    "use",
    [
        lambda one, path: one.save(path),
        lambda one, path: one.state_dict(),
        lambda one, path: one.flush(),
        lambda one, path: one(batch(1)),
        lambda one, path: one.read_rows("t", torch.arange(3)),
    ],
    ids=["save", "state_dict", "flush", "forward", "read_rows"],
)
def test_collection_that_was_closed_says_so(tmp_path, use):
    collection = built()
    train(collection, batch(1, 2))
    collection.close()
    with pytest.raises(RuntimeError, match="the collection was closed: build another one"):
        use(collection, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_weights_of_any_type_pool_alike_in_training_and_after_it(dtype):
    collection = built(is_weighted=True, optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.0))
    weights = torch.tensor([1, 2, 3, 4]).to(dtype)
    features = KeyedJaggedTensor(["f"], torch.arange(4), weights, lengths=torch.ones(4, dtype=torch.int64))
    trained = collection(features).values()
    trained.sum().backward()
    collection.eval()
    with torch.no_grad():
        assert torch.equal(collection(features).values(), trained.detach())


def test_rows_are_fp32_whatever_torch_makes_by_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        collection = built()
        train(collection, batch(1, 2))
        collection.eval()
        with torch.no_grad():
            assert collection(batch(1, 2)).values().dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
