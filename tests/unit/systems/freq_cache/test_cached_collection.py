"""The cache in a model of one's own: what it is built from, schedules, saving, and how it stands in for torchrec.

Where rows, gradients and learning rates are small multiples of powers of two, plain training is exact, and equal means
equal to the last bit.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

from systems.contract import OptimizerKind, Purpose, Rows, SparseOptimizer, Tier, WorkingSetTooLarge
from systems.freq_cache import LFU, LRU, CachedEmbeddingBagCollection
from systems.freq_cache.initial_rows import uniform_rows
from tests.contract.plain_training import PlainTraining
from tests.contract.scenes import assert_same, batch_of, evaluate, ragged, snapshot, table

TABLES = (table("users", 200, 8, "clicked", "bought"), table("colours", 40, 4), table("shops", 60, 8))
WITH_ODD_ONES = (*TABLES, table("words", 30, 8, mean=True), table("tags", 50, 12, half=True))
SGD = SparseOptimizer(kind=OptimizerKind.SGD, lr=0.5)
ADAGRAD = SparseOptimizer(kind=OptimizerKind.ROWWISE_ADAGRAD, lr=0.5)


def built(tables: tuple[EmbeddingBagConfig, ...] = TABLES, **choices: Any) -> CachedEmbeddingBagCollection:
    budget = {} if "device_bytes" in choices else {"cache_ratio": 0.3}
    return CachedEmbeddingBagCollection(tables, **{"optimizer": SGD, "batch_lookups": 128, **budget, **choices})


def batch(step: int, tables: tuple[EmbeddingBagConfig, ...] = TABLES, *, weighted: bool = False) -> KeyedJaggedTensor:
    return ragged(step, tables, longest=2, weighted=weighted)


def learn(pooled: Tensor, step: int) -> None:
    gradient = torch.randint(-4, 5, pooled.shape, generator=torch.Generator().manual_seed(step)).float()
    (pooled * gradient).sum().backward()


def train(collection: CachedEmbeddingBagCollection, steps: range) -> None:
    """Train with as many batches announced as may be, and none left over."""
    tables = tuple(collection.spec.tables)
    batches = [batch(step, tables, weighted=collection.is_weighted()) for step in steps]
    announced = 0
    for at, step in enumerate(steps):
        while collection.look_ahead and announced < min(at + 1 + collection.look_ahead, len(batches)):
            collection.prefetch(batches[announced])
            announced += 1
        learn(collection(batches[at]).values(), step)


class Plain(PlainTraining):
    """Plain training that starts with the rows of a collection."""

    def __init__(self, collection: CachedEmbeddingBagCollection) -> None:
        super().__init__(tuple(collection.spec.tables), collection.spec.optimizer)
        for name, weight in self.weights.items():
            self.weights[name] = torch.arange(weight.numel()).view(weight.shape).double() % 64 / 4
        self._round()
        self.start(collection)

    def train(self, steps: range, *, weighted: bool = False) -> None:
        for step in steps:
            features = batch(step, self.tables, weighted=weighted)
            gradient = torch.randint(-4, 5, self.pooled(features).shape, generator=torch.Generator().manual_seed(step))
            self.step(features, gradient.float())

    def rows(self) -> dict[str, Tensor]:
        found = {f"{name}.weight": weight.float() for name, weight in self.weights.items()}
        found.update({f"{name}.{key}": v.float() for name in self.weights for key, v in self.state(name).items()})
        return found


# What it is built from


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"cache_ratio": None}, "give cache_ratio or device_bytes"),
        ({"cache_ratio": 0.5, "device_bytes": 10**6}, "give cache_ratio or device_bytes"),
        ({"cache_ratio": 0.0}, r"cache ratio 0.0 is outside \(0, 1\]"),
        ({"cache_ratio": 1.5}, r"cache ratio 1.5 is outside \(0, 1\]"),
        ({"device_bytes": 0}, "device budget of 0 bytes"),
        ({"device_bytes": 100}, "device budget of 100 bytes is too small: the smallest that works is [0-9,]+ bytes"),
        ({"look_ahead": -1}, "look_ahead of -1 is outside 0 to 64"),
        ({"look_ahead": 65}, "look_ahead of 65 is outside 0 to 64"),
        ({"policy": "random"}, "policy 'random' is none of static, lfu, lru"),
        ({"policy": "static"}, "give them, or use policy=lfu"),
        ({"cache_rows": {"user": 3, "shop": 3}}, "cache_rows names no table of the collection: shop, user"),
        ({"cache_rows": {"users": 0}}, "cache_rows must be at least 1: users"),
        ({"optimizer": SparseOptimizer(kind=OptimizerKind.ADAM, lr=0.1)}, "no Adam on a CPU: use sgd"),
        ({"tables": ()}, "no tables"),
        ({"tables": (table("a", 5, 6),)}, "table a: embedding_dim 6 is not a multiple of 4"),
        ({"tables": (table("a", 5, 4, "x"), table("b", 5, 4, "x"))}, "feature name used twice: x"),
        ({"tables": (table("a", 5, 4, mean=True),), "is_weighted": True}, "change the pooling of a"),
        ({"seed": -1}, "seed -1"),
        ({"pinned": True, "directory": "somewhere"}, "give directory or pinned, not both"),
        ({"pinned": True}, "pinned rows are for a GPU, which reads them by itself: leave them pageable"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(**choices)


def test_rows_go_with_their_collection_at_once() -> None:
    collection = CachedEmbeddingBagCollection(
        [EmbeddingBagConfig(name="t", feature_names=["t"], num_embeddings=100, embedding_dim=4)],
        optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=1.0),
        cache_ratio=0.1,
        look_ahead=1,
    )
    features = KeyedJaggedTensor(["t"], torch.arange(5), lengths=torch.ones(5, dtype=torch.int64))
    collection(features).values().sum().backward()
    rows = weakref.ref(collection._caches[0].tier)
    gc.disable()
    try:
        del collection
        assert rows() is None
    finally:
        gc.enable()


def test_seed_out_of_range_is_refused_before_any_row_on_disk_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed -1"):
        built(directory=tmp_path, seed=-1)


def frequencies(**changed: Tensor) -> dict[str, Tensor]:
    return {**{t.name: torch.arange(t.num_embeddings) for t in TABLES}, **changed}


@pytest.mark.parametrize(
    "wrong",
    [
        {"colours": torch.arange(39)},
        {"colours": torch.arange(41)},
        {"colours": torch.arange(40) - 1},
        {"colours": None},
    ],
    ids=["too few", "too many", "negative", "missing"],
)
def test_frequencies_that_do_not_fit_a_table_are_refused_by_its_name(wrong: dict[str, Tensor | None]) -> None:
    given = {name: counts for name, counts in frequencies(**wrong).items() if counts is not None}
    with pytest.raises(ValueError, match="colours"):
        built(policy="static", frequencies=given)


def slots(collection: CachedEmbeddingBagCollection) -> dict[str, int]:
    """Slots of the cache of each table."""
    return {name: cache.pool.slots for name, cache in collection._cache_of_table.items()}


def device_bytes(collection: CachedEmbeddingBagCollection) -> int:
    return sum(count for (tier, _), count in collection.memory().items() if tier is Tier.DEVICE)


def test_ratio_gives_each_width_its_share_of_slots() -> None:
    assert slots(built(cache_ratio=0.25)) == {"users": 65, "shops": 65, "colours": 10}


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_byte_budget_is_used_up_and_kept(look_ahead: int) -> None:
    for budget in (3000, 5000, 7000):
        collection = built(device_bytes=budget, look_ahead=look_ahead)
        assert budget - 2 * (3 * 8 * 4) < device_bytes(collection) <= budget


def test_table_with_slots_of_its_own_leaves_the_others_theirs() -> None:
    collection = built(cache_rows={"users": 50}, cache_ratio=0.5)
    assert slots(collection) == {"users": 50, "shops": 30, "colours": 20}
    assert slots(built(cache_rows={"shops": 999}))["shops"] == 60
    for cache in collection._caches:
        assert cache.planner.slots == cache.pool.slots


def test_slots_of_its_own_beyond_the_byte_budget_are_refused() -> None:
    with pytest.raises(ValueError, match="the smallest that works"):
        built(device_bytes=3000, cache_rows={"users": 200})


def test_batch_beyond_the_slots_of_its_own_table_is_told_what_works() -> None:
    collection = built(device_bytes=9000, cache_rows={"users": 3})
    ids = {"clicked": [[1, 2, 3, 4]], "bought": [[]], "colours": [[]], "shops": [[]]}
    with pytest.raises(WorkingSetTooLarge, match="cache_rows"):
        collection(batch_of(ids))


@pytest.mark.parametrize("policy", ["static", "lfu", "lru", lambda rows: LRU(), LFU])
@pytest.mark.parametrize("look_ahead", [0, 3])
def test_every_policy_trains_as_plain_torch_does(policy: Any, look_ahead: int) -> None:
    collection = built(policy=policy, look_ahead=look_ahead, frequencies=frequencies())
    plain = Plain(collection)
    train(collection, range(8))
    plain.train(range(8))
    assert_same(snapshot(collection), plain.rows())
    assert collection.counters().rows_written_back > 0


def test_policy_of_ones_own_is_made_for_the_rows_of_each_cache() -> None:
    asked: list[int] = []
    built(policy=lambda rows: asked.append(rows) or LRU())
    assert asked == [260, 40]


@pytest.mark.parametrize("on_disk", [False, True])
def test_widths_poolings_and_row_types_mix(on_disk: bool, tmp_path: Path) -> None:
    directory = tmp_path if on_disk else None
    collection = built(WITH_ODD_ONES, optimizer=ADAGRAD, look_ahead=2, directory=directory)
    plain = Plain(collection)
    for step in range(4):
        train(collection, range(step, step + 1))
        plain.train(range(step, step + 1))
    found, wanted = snapshot(collection), plain.rows()
    half = {name for name in found if name.startswith("tags.w")}
    assert_same({n: found[n] for n in found.keys() - half}, {n: wanted[n] for n in wanted.keys() - half}, within=1e-4)
    assert_same({n: found[n] for n in half}, {n: wanted[n] for n in half}, within=2e-2)


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_weighted_batches_train_as_plain_torch_does(look_ahead: int) -> None:
    collection = built(is_weighted=True, look_ahead=look_ahead)
    plain = Plain(collection)
    assert collection.is_weighted()
    train(collection, range(6))
    plain.train(range(6), weighted=True)
    assert_same(snapshot(collection), plain.rows())


# The learning rate


@pytest.mark.parametrize("look_ahead", [0, 3])
def test_schedule_of_torch_trains_as_plain_torch_at_the_same_rates(look_ahead: int) -> None:
    collection = built(look_ahead=look_ahead)
    plain = Plain(collection)
    schedule = StepLR(collection.fused_optimizer, step_size=2, gamma=0.5)
    batches = [batch(step) for step in range(8)]
    rates = []
    for step, features in enumerate(batches):
        coming = batches[: 1 + look_ahead] if not step else batches[step + look_ahead :][:1]
        for ahead in coming if look_ahead else []:
            collection.prefetch(ahead)
        learn(collection(features).values(), step)
        rates.append(schedule.get_last_lr()[0])
        plain.optimizer = replace(SGD, lr=rates[-1])
        plain.train(range(step, step + 1))
        collection.fused_optimizer.step()
        schedule.step()
    assert rates == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625]
    assert_same(snapshot(collection), plain.rows())


def test_rate_set_between_announcement_and_lookup_holds_for_that_lookup() -> None:
    collection = built(look_ahead=3)
    plain = Plain(collection)
    batches = [batch(step) for step in range(4)]
    for features in batches:
        collection.prefetch(features)
    for step, (features, lr) in enumerate(zip(batches, [0.5, 0.25, 1.0, 0.125], strict=True)):
        collection.fused_optimizer.param_groups[0]["lr"] = lr
        learn(collection(features).values(), step)
        plain.optimizer = replace(SGD, lr=lr)
        plain.train(range(step, step + 1))
    assert_same(snapshot(collection), plain.rows())


def test_state_of_the_fused_optimizer_carries_its_hyper_parameters() -> None:
    first, second = built(), built()
    first.set_learning_rate(0.125)
    saved = first.fused_optimizer.state_dict()
    assert saved["param_groups"][0]["lr"] == 0.125
    second.fused_optimizer.load_state_dict(saved)
    plain = Plain(second)
    plain.optimizer = replace(SGD, lr=0.125)
    train(second, range(2))
    plain.train(range(2))
    assert_same(snapshot(second), plain.rows())


# Saving and going on


GOES_ON = {
    "smaller, without look-ahead": {"cache_ratio": 0.1, "look_ahead": 0},
    "larger, further ahead": {"cache_ratio": 0.9, "look_ahead": 5},
    "another policy": {"policy": "lru", "look_ahead": 1},
    "slots of its own": {"cache_rows": {"shops": 7}},
    "on disk": {"directory": "rows", "look_ahead": 2},
}


@pytest.mark.parametrize("optimizer", [SGD, ADAGRAD], ids=["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("choices", GOES_ON.values(), ids=GOES_ON)
@pytest.mark.parametrize("back", [False, True], ids=["", "the other way"])
def test_saved_amid_an_epoch_goes_on_elsewhere_bit_for_bit(
    tmp_path: Path, optimizer: SparseOptimizer, choices: dict[str, Any], back: bool
) -> None:
    if "directory" in choices:
        choices = {**choices, "directory": tmp_path / "rows"}
    here, there = {"optimizer": optimizer, "look_ahead": 2}, {"optimizer": optimizer, **choices}
    uninterrupted = built(optimizer=optimizer)
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
    return [cache.planner.policy.state for cache in collection._caches]


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


def test_checkpoint_of_another_policy_leaves_nothing_learnt(tmp_path: Path) -> None:
    first = built(policy="lru")
    train(first, range(3))
    first.save(tmp_path)
    second = built(policy="lfu")
    second.load(tmp_path)
    assert not any(counts.any() for counts in learnt(second))


@pytest.mark.parametrize("trained_since", [0, 1])
def test_saved_learning_rate_is_gone_on_with(tmp_path: Path, trained_since: int) -> None:
    first = built()
    plain = Plain(first)
    first.set_learning_rate(0.125)
    plain.optimizer = replace(SGD, lr=0.125)
    train(first, range(trained_since))
    first.save(tmp_path)
    second = built()
    second.load(tmp_path)
    train(second, range(trained_since, 3))
    plain.train(range(3))
    assert_same(snapshot(second), plain.rows())


def test_loading_brings_back_the_learning_rate_that_it_was_built_with(tmp_path: Path) -> None:
    collection = built()
    collection.save(tmp_path)
    collection.set_learning_rate(0.125)
    train(collection, range(1))
    collection.load(tmp_path)
    assert collection.fused_optimizer.param_groups[0]["lr"] == 0.5


def test_learning_rate_of_a_commit_is_gone_on_with(tmp_path: Path) -> None:
    first = built(directory=tmp_path)
    first.set_learning_rate(0.125)
    first.commit()
    for cache in first._caches:
        cache.tier.close()
    assert built(directory=tmp_path).fused_optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("tables", [TABLES[::-1], (table("clients", 200, 8, "clicked", "bought"), *TABLES[1:])])
def test_directory_of_other_tables_is_refused_whatever_their_sizes(
    tmp_path: Path, tables: tuple[EmbeddingBagConfig, ...]
) -> None:
    first = built(directory=tmp_path)
    first.commit()
    for cache in first._caches:
        cache.tier.close()
    with pytest.raises(ValueError, match="users"):
        built(tables, directory=tmp_path)


# Initial rows


def test_first_rows_follow_from_the_seed_alone_whatever_the_tier(tmp_path: Path) -> None:
    tables = (*TABLES, table("tags", 50, 8, half=True))
    on_host = built(tables, seed=7)
    wanted = {}
    for number, one in enumerate(tables):
        rows = torch.empty(one.num_embeddings, one.embedding_dim)
        everything = torch.arange(one.num_embeddings)
        uniform_rows(everything, rows=one.num_embeddings, dim=one.embedding_dim, seed=7, stream=number, out=rows)
        wanted[f"{one.name}.weight"] = rows.half().float() if one.name == "tags" else rows
    assert_same(snapshot(on_host), wanted)
    assert_same(snapshot(built(tables, seed=7, directory=tmp_path)), wanted)
    assert_same(snapshot(built(tables, seed=7, cache_rows={"users": 9}, policy="lru", look_ahead=2)), wanted)
    assert not torch.equal(snapshot(built(seed=8))["users.weight"], wanted["users.weight"])


def test_rows_without_a_seed_are_zero(tmp_path: Path) -> None:
    for collection in (built(seed=None), built(seed=None, directory=tmp_path)):
        assert not any(value.any() for value in snapshot(collection).values())


# In the place of an EmbeddingBagCollection


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


def test_optimizer_state_stands_beside_the_weights() -> None:
    first, second = built(optimizer=ADAGRAD), built(optimizer=ADAGRAD, cache_ratio=0.8)
    train(first, range(3))
    saved = first.state_dict()
    names = set(EmbeddingBagCollection(tables=list(TABLES)).state_dict())
    assert set(saved) == names | {name.replace(".weight", ".sum") for name in names}
    second.load_state_dict(saved, strict=True)
    for collection in (first, second):
        train(collection, range(3, 6))
    assert_same(snapshot(first), snapshot(second))


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_dlrm_trains_as_with_a_plain_embedding_bag_collection(look_ahead: int) -> None:
    tables = (TABLES[0], TABLES[2])
    ours = built(tables, look_ahead=look_ahead, cache_ratio=0.3)
    theirs = EmbeddingBagCollection(tables=list(tables))
    theirs.load_state_dict(ours.state_dict())
    models = []
    for collection in (ours, theirs):
        torch.manual_seed(0)
        models.append(
            DLRM(
                embedding_bag_collection=collection,
                dense_in_features=3,
                dense_arch_layer_sizes=[16, 8],
                over_arch_layer_sizes=[16, 1],
            )
        )
    assert not list(ours.parameters())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    labels = torch.tensor([0.0, 1.0] * 4)
    before = snapshot(ours)
    for step in range(10):
        dense = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        outputs = []
        features = batch(step, tables)
        if look_ahead:
            ours.prefetch(features)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            logits = model(dense_features=dense, sparse_features=features).squeeze(-1)
            nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            optimizer.step()
            outputs.append(logits.detach())
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight, rtol=0, atol=1e-6)
    assert any(not torch.equal(value, before[name]) for name, value in snapshot(ours).items())


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_evaluation_moves_nothing_back(look_ahead: int) -> None:
    collection = built(look_ahead=look_ahead, policy="lru", cache_ratio=0.2)
    train(collection, range(3))
    collection.flush()
    collection.reset_counters()
    with torch.no_grad():
        for step in range(10, 20):
            features = batch(step)
            if look_ahead:
                collection.prefetch(features)
            collection(features)
        collection.flush()
    found = collection.counters()
    assert found.rows_fetched > 100
    assert (found.rows_written_back, found.bytes_written_back) == (0, 0)


# What it takes


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
    found, caches = collection.memory(), collection._caches
    weights = storage_bytes(*(cache.pool.weights for cache in caches))
    state = storage_bytes(*(values for cache in caches for values in cache.pool.state.values()))
    # fbgemm wants a row of its own for every table, beside those that they share
    spare = sum(len(cache.tables) - 1 for cache in caches)
    assert weights - found[Tier.DEVICE, Purpose.ROWS] == 8 * 4 * spare
    assert 0 <= state - found[Tier.DEVICE, Purpose.STATE] <= 8 * 4 * spare
    extra = [values for c in caches for pool in c.pools[1:] for values in (pool.weights, *pool.state.values())]
    assert bool(extra) == (ratio == 0.01)
    assert found[Tier.DEVICE, Purpose.STAGING] >= storage_bytes(*extra) + 4 * 128
    planned = sum(array.nbytes for cache in caches for array in arrays(cache.planner))
    kept = sum(array.nbytes for cache in caches for array in arrays(cache.tier)) if on_disk else 0
    assert found[Tier.HOST, Purpose.INDEX] + found[Tier.HOST, Purpose.STAGING] == planned + kept
    slow = Tier.DISK if on_disk else Tier.HOST
    if on_disk:
        held = sum((tmp_path / f"cache_{at}" / "rows.bin").stat().st_size for at in range(len(caches)))
    else:
        held = storage_bytes(*(cache.tier.records for cache in caches))
    assert found[slow, Purpose.ROWS] + found[slow, Purpose.STATE] == held


def test_dropped_collection_ends_its_threads_and_lets_go_of_its_directory(tmp_path: Path) -> None:
    gc.collect()
    before = set(threading.enumerate())
    collection = built(look_ahead=2, directory=tmp_path, cache_ratio=0.2, policy="lru")
    train(collection, range(6))
    collection.commit()
    ours = [thread for thread in threading.enumerate() if thread not in before]
    assert {thread.name.split("_")[0] for thread in ours} >= {"cache-planning", "cache-writing"}
    gone = weakref.ref(collection)
    rows = snapshot(collection)
    del collection
    gc.collect()
    assert gone() is None
    for thread in ours:
        thread.join(10)
        assert not thread.is_alive()
    assert_same(snapshot(built(directory=tmp_path)), rows)


def test_rows_loaded_while_batches_are_announced_are_the_ones_looked_up() -> None:
    collection = built(look_ahead=2)
    batches = [batch(step) for step in range(3)]
    for features in batches:
        collection.prefetch(features)
    for one in TABLES:
        collection.load_rows(one.name, 0, Rows(torch.ones(one.num_embeddings, one.embedding_dim)))
    with torch.no_grad():
        pooled = collection(batches[0])["colours"]
    lengths = batches[0].to_dict()["colours"].lengths()
    assert torch.equal(pooled, lengths.float()[:, None].expand(-1, 4))
