"""Where rows are: bytes by tier and purpose, and what a system says of it."""

import pytest
import torch
from plain_training import PlainTraining
from scenes import EVERY_VARIANT, KINDS, TABLES, UVM, VARIANTS, build, optimizer, ragged, train

from systems.contract import CacheRatio, EmbeddingSystem, MemoryUse, OptimizerKind, Tier

ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD
ROWS_BYTES = 4 * 16 * sum(t.num_embeddings for t in TABLES)


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
