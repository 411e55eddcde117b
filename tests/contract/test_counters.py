"""What systems count: lookups, misses and bytes."""

import pytest
import torch
from scenes import (
    EVERY_VARIANT,
    TABLES,
    UVM,
    VARIANTS,
    assert_same,
    build,
    evaluate,
    ragged,
    repeatable,
    snapshot,
    started,
    train,
)

from systems.contract import EmbeddingSystem


def counted(variant: str, device: torch.device, steps: int) -> EmbeddingSystem:
    system = build(variant, device=device)
    system.count_traffic(True)
    for seed in range(steps):
        train(system, ragged(seed), seed)
    return system


def spread(seed: int) -> tuple[int, int, dict[str, int]]:
    """Lookups, distinct rows and distinct rows by table of `ragged(seed)`, counted in Python sets."""
    parts = ragged(seed).to_dict()
    by_table = {t.name: len({i for f in t.feature_names for i in parts[f].values().tolist()}) for t in TABLES}
    return sum(part.values().numel() for part in parts.values()), sum(by_table.values()), by_table


@pytest.mark.parametrize("variant", EVERY_VARIANT)
def test_counters_agree_with_the_batches_and_with_each_other(variant: str, device: torch.device) -> None:
    found = counted(variant, device, 6).counters()
    lookups, unique, by_table = zip(*map(spread, range(6)), strict=True)
    assert (found.steps, found.lookups, found.unique_ids) == (6, sum(lookups), sum(unique))
    if found.unique_misses is not None:
        assert 0 <= found.unique_misses <= found.unique_ids <= found.lookups
    if found.lookup_misses is not None:
        assert found.unique_misses <= found.lookup_misses <= found.lookups
    if found.bytes_fetched is not None:
        row_bytes = 4 * TABLES[0].embedding_dim
        assert found.bytes_fetched == row_bytes * found.rows_fetched
        assert found.bytes_written_back == row_bytes * found.rows_written_back
    if found.per_table is not None:
        assert {name: seen for name, (seen, _) in found.per_table.items()} == {
            t.name: sum(of[t.name] for of in by_table) for t in TABLES
        }
        assert sum(missed for _, missed in found.per_table.values()) == found.unique_misses


@pytest.mark.parametrize("variant", VARIANTS)
def test_counters_start_anew_after_a_reset(variant: str, device: torch.device) -> None:
    system = counted(variant, device, 3)
    system.reset_counters()
    found = system.counters()
    assert (found.steps, found.unique_ids or 0, found.rows_fetched or 0) == (0, 0, 0)
    for seed, step in ((3, train), (0, evaluate)):  # evaluation is counted too
        step(system, ragged(seed))
        found = system.counters()
        assert (found.steps, found.lookups, found.unique_ids) == (1, *spread(seed)[:2])
        system.reset_counters()


@pytest.mark.parametrize(("variant", "moved"), [("reference", 0), ("full_gpu", 0), *((name, None) for name in UVM)])
def test_rows_in_place_move_nothing_and_host_resident_uvm_claims_no_traffic(variant: str, moved: int | None) -> None:
    found = counted(variant, torch.device("cpu"), 1).counters()
    assert (found.unique_misses, found.rows_fetched, found.bytes_fetched, found.bytes_written_back) == (moved,) * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_counting_does_not_change_training(variant: str, device: torch.device) -> None:
    silent, loud = started(variant, device), started(variant, device)
    loud.count_traffic(True)
    for system in (silent, loud):
        for seed in range(3):
            train(system, ragged(seed), seed)
    assert_same(snapshot(loud), snapshot(silent), within=repeatable(device))
