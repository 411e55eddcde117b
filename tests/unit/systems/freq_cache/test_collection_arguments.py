"""What a collection is built with: refused where it does not go together, and how many slots it gives."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, PoolingType
from torchrec.types import DataType

from systems.contract import CacheRatio, MemoryUse, OptimizerKind, SparseOptimizer, Tier, WorkingSetTooLarge
from systems.freq_cache import LFU, CachedEmbeddingBagCollection
from tests.contract.scenes import batch_of, spec_of, table
from tests.faults.freq_cache_training import TABLES, TWO_WIDTHS, built


def odd(**more: Any) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(name="odd", feature_names=["odd"], num_embeddings=9, embedding_dim=4, **more)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"cache_ratio": None}, "give cache_ratio, device_bytes or host_bytes"),
        ({"cache_ratio": 0.5, "device_bytes": 10**6}, "give cache_ratio, device_bytes or host_bytes"),
        ({"cache_ratio": 0.0}, r"cache ratio 0.0 is outside \(0, 1\]"),
        ({"cache_ratio": 1.5}, r"cache ratio 1.5 is outside \(0, 1\]"),
        ({"device_bytes": 0}, "a budget of 0 bytes is not positive"),
        ({"device_bytes": 100}, "device budget of 100 bytes is too small: the smallest that works is [0-9,]+ bytes"),
        ({"look_ahead": -1}, "look_ahead of -1 is outside 0 to 64"),
        ({"look_ahead": 65}, "look_ahead of 65 is outside 0 to 64"),
        ({"policy": "random"}, "policy 'random' is none of static, lfu, lru"),
        ({"policy": "static"}, "give them, or use policy=lfu"),
        ({"cache_rows": {"user": 3, "shop": 3}}, "cache_rows names no table of the collection: shop, user"),
        ({"cache_rows": {"users": 0, "shops": 2.5}}, "cache_rows must be whole numbers from 1 on: shops, users"),
        ({"optimizer": SparseOptimizer(kind=OptimizerKind.ADAM, lr=0.1)}, "no Adam on a CPU: use sgd"),
        ({"tables": ()}, "no tables"),
        ({"tables": (odd(pooling=PoolingType.NONE),)}, "CachedEmbeddingCollection for odd"),
        ({"tables": (odd(data_type=DataType.BF16),)}, "table odd: rows of BF16 are not supported, use FP32 or FP16"),
        ({"table_kwargs": {"user": {"lr": 1.0}}}, "table_kwargs names no table of the collection: user"),
        ({"table_kwargs": {"users": {"weight_decay": 0.1}}}, "fbgemm decays no rows on a CPU: leave weight_decay at 0"),
        ({"device_bytes": 3000, "cache_rows": {"users": 200}}, "the smallest that works is [0-9,]+ bytes"),
        ({"tables": (table("a", 5, 4), table("a", 6, 4))}, "table name used twice: a"),
        ({"lookups_per_backward": 0}, "lookups_per_backward of 0 is less than 1"),
        ({"tables": (table("a", 5, 4, mean=True),), "is_weighted": True}, "change the pooling of a"),
        ({"seed": -1}, "seed -1"),
        (
            {"seed": 0, "tables": (odd(weight_init_min=float("nan")),)},
            "table odd has first rows from nan to .*: give finite",
        ),
        ({"pinned": True, "directory": "somewhere"}, "give directory or pinned, not both"),
        ({"pinned": True}, "pinned rows are for a GPU, which reads them by itself: leave them pageable"),
        ({"copy_engine": "device"}, r"pin them \(tier=pinned\)"),
        ({"policy": lambda _: LFU(3)}, "LFU is not made for the 400 rows"),
        ({"batch_lookups": -1}, "batch_lookups of -1 is less than 0"),
        ({"tables": (table("users", 2.5, 8),)}, "table users: num_embeddings is a whole number from 1 on, not 2.5"),
        ({"tables": (table("users", 9, 2.5),)}, "table users: embedding_dim is a whole number from 1 on, not 2.5"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(**choices)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("cache_ratio", "0.1"),
        ("device_bytes", "8GiB"),
        ("look_ahead", 2.0),
        ("look_ahead", True),
        ("seed", 0.5),
        ("is_weighted", "no"),
        ("pinned", 1),
        ("policy", lambda _: None),
        ("tables", table("users", 9, 8)),
    ],
)
def test_argument_of_another_type_is_named(argument: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^a? ?{argument} (is|are) "):
        built(**{argument: value})


@pytest.mark.parametrize("wrong", [torch.arange(99), torch.arange(101), torch.arange(100) - 1, torch.zeros(100), None])
def test_frequencies_that_do_not_fit_a_table_are_refused(wrong: Tensor | None) -> None:
    given = {"users": torch.arange(300)} | ({} if wrong is None else {"shops": wrong})
    with pytest.raises(ValueError, match=r"of table shops, int64 \[100\]|cannot be negative"):
        built(policy="static", frequencies=given)


def slots(collection: CachedEmbeddingBagCollection) -> dict[str, int]:
    """Slots of the cache of each table."""
    return {name: cache.pool.slots for name, cache in collection._cache_of_table.items()}


def device_bytes(collection: CachedEmbeddingBagCollection) -> int:
    return sum(count for (tier, _), count in collection.memory().items() if tier is Tier.DEVICE)


def test_ratio_gives_each_width_its_share_of_slots() -> None:
    assert slots(built(TABLES, cache_ratio=0.25)) == {"users": 100, "shops": 100}
    assert slots(built(TWO_WIDTHS, cache_ratio=0.25)) == {"users": 15, "shops": 10}


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_byte_budget_is_used_up_and_kept(look_ahead: int) -> None:
    for budget in (3000, 5000, 7000):
        collection = built(device_bytes=budget, look_ahead=look_ahead)
        assert budget - 2 * (3 * 8 * 4) < device_bytes(collection) <= budget


def test_table_with_slots_of_its_own_leaves_the_others_theirs() -> None:
    collection = built(cache_rows={"users": 50}, cache_ratio=0.5)
    assert slots(collection) == {"users": 50, "shops": 50}
    assert slots(built(cache_rows={"shops": 999}))["shops"] == 100
    for cache in collection.caches:
        assert cache.planner.slots == cache.pool.slots


def test_batch_beyond_the_slots_of_its_own_table_is_told_what_works() -> None:
    collection = built(device_bytes=9000, cache_rows={"users": 3})
    ids = {"users": [[1, 2, 3, 4]], "from": [[]], "to": [[]]}
    with pytest.raises(WorkingSetTooLarge, match="cache_rows"):
        collection(batch_of(ids))


def test_memory_needed_beside_rows_in_a_file_includes_the_level_of_ram() -> None:
    needed, level = [], 0
    for ram_ratio in (0.0, 0.5):
        budget = CacheRatio(ratio=0.1, ram_ratio=ram_ratio)
        system, spec = spec_of("freq_cache[tier=file]", device=torch.device("cpu"), tables=TABLES, budget=budget)
        needed.append(system.required_bytes(spec)[Tier.HOST])
        level = system(spec).memory().get((Tier.HOST, MemoryUse.ROWS), 0)
    assert needed[1] - needed[0] >= level > 0
