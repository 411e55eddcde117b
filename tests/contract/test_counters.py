"""What systems count: lookups, misses and bytes."""

import pytest
import torch
from plain_training import PlainTraining
from scenes import (
    CACHES,
    EVERY_VARIANT,
    TABLES,
    UNIFORM,
    UVM,
    VARIANTS,
    assert_same,
    build,
    evaluate,
    optimizer,
    ragged,
    repeatable,
    snapshot,
    train,
)

from systems.contract import CacheRatio, EmbeddingSystem, OptimizerKind

CPU = torch.device("cpu")
ADAGRAD = OptimizerKind.ROWWISE_ADAGRAD


def counted(variant: str, device: torch.device, kind: OptimizerKind = OptimizerKind.SGD) -> EmbeddingSystem:
    system = build(variant, device=device, kind=kind)
    system.count_traffic(True)
    return system


def spread(seed: int) -> tuple[int, int, dict[str, int]]:
    """Lookups, distinct rows and distinct rows by table of `ragged(seed)`, counted in Python sets."""
    parts = ragged(seed).to_dict()
    by_table = {t.name: len({i for f in t.feature_names for i in parts[f].values().tolist()}) for t in TABLES}
    return sum(part.values().numel() for part in parts.values()), sum(by_table.values()), by_table


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_counters_agree_with_the_batches_and_with_each_other(variant: str, device: torch.device) -> None:
    system = counted(variant, device)
    for seed in range(6):
        train(system, ragged(seed), seed)
    found = system.counters()
    assert found.steps == 6
    assert found.lookups == sum(spread(seed)[0] for seed in range(6))
    assert found.unique_ids == sum(spread(seed)[1] for seed in range(6))
    if found.unique_misses is not None:
        assert 0 <= found.unique_misses <= found.unique_ids <= found.lookups
    if found.lookup_misses is not None:
        assert found.unique_misses <= found.lookup_misses <= found.lookups
    if found.bytes_fetched is not None:
        widths = [4 * t.embedding_dim for t in TABLES]
        assert min(widths) * found.rows_fetched <= found.bytes_fetched <= max(widths) * found.rows_fetched
        written = found.rows_written_back
        assert min(widths) * written <= found.bytes_written_back <= max(widths) * written
    if found.per_table is not None:
        unique = {name: sum(spread(seed)[2][name] for seed in range(6)) for name in found.per_table}
        assert {name: pair[0] for name, pair in found.per_table.items()} == unique
        assert set(unique) == {t.name for t in TABLES}
        assert sum(pair[1] for pair in found.per_table.values()) == found.unique_misses


@pytest.mark.parametrize("variant", VARIANTS)
def test_counters_start_anew_after_a_reset(variant: str, device: torch.device) -> None:
    system = counted(variant, device)
    for seed in range(3):
        train(system, ragged(seed), seed)
    system.reset_counters()
    assert system.counters().steps == 0
    assert not system.counters().unique_ids
    assert not system.counters().rows_fetched
    for seed, step in ((3, train), (0, evaluate)):  # evaluation is counted too
        step(system, ragged(seed))
        found = system.counters()
        assert (found.steps, found.lookups, found.unique_ids) == (1, *spread(seed)[:2])
        system.reset_counters()


@pytest.mark.parametrize(("variant", "moved"), [("reference", 0), ("full_gpu", 0), *((name, None) for name in UVM)])
def test_rows_in_place_move_nothing_and_host_resident_uvm_claims_no_traffic(variant: str, moved: int | None) -> None:
    system = counted(variant, CPU)
    train(system, ragged(0))
    found = system.counters()
    assert (found.unique_misses, found.rows_fetched, found.bytes_fetched, found.bytes_written_back) == (moved,) * 4


@pytest.mark.parametrize("kind", [OptimizerKind.SGD, ADAGRAD])
@pytest.mark.parametrize("variant", CACHES)
def test_bytes_of_a_cache_count_the_optimizer_state_that_moves_along(
    variant: str, kind: OptimizerKind, device: torch.device
) -> None:
    system = build(variant, device=device, kind=kind, tables=UNIFORM, budget=CacheRatio(ratio=0.2))
    for seed in range(4):
        train(system, ragged(seed, UNIFORM), seed)
    found = system.counters()
    width = 4 * 8 + (4 if kind is ADAGRAD else 0)
    assert found.rows_fetched > 0
    assert found.rows_written_back > 0
    assert found.bytes_fetched == width * found.rows_fetched
    assert found.bytes_written_back == width * found.rows_written_back


@pytest.mark.parametrize("variant", VARIANTS)
def test_counting_does_not_change_training(variant: str, device: torch.device) -> None:
    silent, loud = build(variant, device=device, kind=ADAGRAD), counted(variant, device, ADAGRAD)
    for system in (silent, loud):
        PlainTraining(TABLES, optimizer(ADAGRAD)).start(system)
        for seed in range(3):
            train(system, ragged(seed), seed)
    assert_same(snapshot(loud), snapshot(silent), within=repeatable(device))
