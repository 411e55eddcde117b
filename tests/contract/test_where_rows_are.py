"""Where rows are: bytes by tier and purpose, and what a system says of it."""

import pytest
import torch
from plain_training import PlainTraining
from scenes import CACHES, EVERY_VARIANT, KINDS, TABLES, UVM, VARIANTS, build, optimizer, ragged, table, train

from systems.contract import CacheRatio, EmbeddingSystem, MemoryUse, OptimizerKind, Tier

ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD
ROWS = sum(t.num_embeddings for t in TABLES)
ROWS_BYTES = 4 * 16 * ROWS
WIDTHS = (
    table("users", 41, 16),
    table("colours", 7, 4),
    table("words", 29, 8),
    table("one", 1, 4),
    table("shops", 23, 16),
)
"""Our cache takes several widths, and has a cache for each."""


def bytes_of(system: EmbeddingSystem, purpose: MemoryUse) -> dict[Tier, int]:
    return {tier: n for (tier, what), n in system.memory().items() if what is purpose and n}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["reference", "full_gpu", *UVM])
def test_systems_without_a_cache_of_ours_keep_each_row_once(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system = build(variant, device=device, kind=kind)
    tier = Tier.HOST if variant in UVM else Tier.DEVICE
    state = sum(t.num_embeddings * optimizer(kind).state_bytes(t.embedding_dim) for t in TABLES)
    assert bytes_of(system, MemoryUse.ROWS)[tier] == ROWS_BYTES
    if variant not in UVM or device.type == "cpu":  # a GPU has row-wise state and the cache
        assert bytes_of(system, MemoryUse.ROWS) == {tier: ROWS_BYTES}
        assert bytes_of(system, MemoryUse.STATE) == ({tier: state} if state else {})


@pytest.mark.parametrize("kind", [OptimizerKind.SGD, ADAGRAD])
@pytest.mark.parametrize("variant", CACHES)
def test_cache_keeps_all_rows_on_the_host_and_its_slots_on_the_device(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system = build(variant, device=device, kind=kind, tables=WIDTHS, budget=CacheRatio(ratio=0.25))
    # users + shops: 64 rows of 16; colours + one: 8 rows of 4; words: 29 rows of 8
    slots = {16: 16, 4: 2, 8: 7}
    state = 4 if kind is ADAGRAD else 0
    assert bytes_of(system, MemoryUse.ROWS) == {
        Tier.HOST: 4 * (64 * 16 + 8 * 4 + 29 * 8),
        Tier.DEVICE: sum(4 * dim * n for dim, n in slots.items()),
    }
    on_both = {Tier.HOST: state * ROWS, Tier.DEVICE: state * sum(slots.values())}
    assert bytes_of(system, MemoryUse.STATE) == (on_both if state else {})
    assert bytes_of(system, MemoryUse.INDEX).keys() == {Tier.HOST}  # how much, the live arrays say


@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_does_not_grow_with_training(variant: str, device: torch.device) -> None:
    system = build(variant, device=device, kind=ADAGRAD, budget=CacheRatio(ratio=1.0))
    PlainTraining(TABLES, optimizer(ADAGRAD)).start(system)
    before = system.memory()
    for seed in range(3):
        train(system, ragged(seed), seed)
    assert system.memory() == before


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_offload_systems_say_so_and_on_a_cpu_only_rows_on_a_drive_are_offloaded(
    variant: str, device: torch.device
) -> None:
    placement = build(variant, device=device).placement
    if device.type == "cuda":
        assert placement.offloads == (variant not in ("reference", "full_gpu"))
        return
    assert (placement.label == "host-resident") == (variant in UVM or variant == "cpu_embeddings")
    assert placement.label
    assert "device" not in placement.label
    assert placement.offloads == (variant in ("mapped_table", "rocksdb_table"))
