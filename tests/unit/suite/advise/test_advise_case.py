"""Device bytes of a case are those of the live system."""

from __future__ import annotations

import pytest
import torch
from advise_scenes import case, shape
from torchrec import KeyedJaggedTensor

from suite.advise.calibrate.calibration import Kernel, RowType, canonical, kernel_of
from systems import registry
from systems.contract import CacheRatio, DeviceBytes, Tier
from systems.registry import UnknownSystem, Variant


def _embeddings(sizes: dict[str, int]) -> int:
    return sum(size for name, size in sizes.items() if name != "model and activations")


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad"])
@pytest.mark.parametrize(
    ("system", "tier"), [("full_gpu", Tier.DEVICE), ("reference", Tier.DEVICE), ("fbgemm_uvm", Tier.HOST)]
)
def test_resident_tables_weigh_what_the_live_ones_do(system: str, tier: Tier, optimizer: str) -> None:
    found = case(system, optimizer=optimizer)
    live = registry.load(Variant.parse(system))(found.spec).memory()
    assert sum(live.values()) == _embeddings(found.device_bytes)
    assert {place for place, _ in live} == {tier}


@pytest.mark.parametrize("budget", [CacheRatio(ratio=0.25), DeviceBytes(total_bytes=25_000)])
@pytest.mark.parametrize("row_type", list(RowType))
def test_cache_has_the_slots_and_bytes_that_are_predicted(budget: CacheRatio | DeviceBytes, row_type: RowType) -> None:
    found = case("freq_cache[policy=lru]", budget=budget, row_type=row_type, optimizer="rowwise_adagrad")
    live = registry.load(Variant("freq_cache"))(found.spec)
    ids = torch.arange(3 * 64) % 20
    live(KeyedJaggedTensor.from_offsets_sync(["first", "second", "third"], ids, torch.arange(193)))
    held = sum(size for (place, _), size in live.memory().items() if place is Tier.DEVICE)
    assert found.slots == live.caches[0].planner.slots
    assert found.device_bytes["cached rows"] == found.slots * (16 * row_type.value_bytes + 4)
    assert held <= _embeddings(found.device_bytes)
    if isinstance(budget, DeviceBytes):
        assert 0.9 * budget.total_bytes < _embeddings(found.device_bytes) <= budget.total_bytes


def test_budget_too_small_leaves_no_slots_and_says_so() -> None:
    found = case("freq_cache[policy=lru]", budget=DeviceBytes(total_bytes=100))
    assert found.slots == 0
    assert "too small" in found.support.reason


def test_uvm_on_a_gpu_keeps_rows_on_the_host() -> None:
    plain = case("fbgemm_uvm", device="cuda", optimizer="rowwise_adagrad")
    assert plain.device_bytes["row-wise state of all rows"] == 4 * 820
    cached = case("fbgemm_uvm_caching", device="cuda", budget=CacheRatio(ratio=0.25))
    assert cached.slots == 32 * 7  # 205 rows in whole sets of 32
    assert cached.device_bytes["cached rows"] == cached.slots * (16 * 4 + 16)
    assert cached.device_bytes["index and row-wise state of all rows"] == 4 * 820


def test_model_weighs_parameters_gradients_and_activations() -> None:
    plain, adaptive = shape(), shape(optimizer="adam")
    assert adaptive.model_bytes - plain.model_bytes == 2 * 4 * plain.dense_parameters
    assert plain.model_bytes == 4 * (2 * plain.dense_parameters + 2 * plain.activation_values)


def test_systems_that_compute_alike_share_a_kernel() -> None:
    on_cpu = {kernel_of(name, device="cpu") for name in ("full_gpu", "fbgemm_uvm", "fbgemm_uvm_caching[policy=lfu]")}
    assert on_cpu == {Kernel(variant="full_gpu")}
    assert kernel_of("torchrec_uvm_caching", device="cpu") == Kernel(variant="torchrec_uvm")
    assert kernel_of("fbgemm_uvm", device="cuda") == Kernel(variant="fbgemm_uvm")
    assert canonical(Variant.parse("freq_cache[policy=static,look_ahead=4]")) == "freq_cache[look_ahead=4]"
    assert str(kernel_of("freq_cache", device="cpu", row_type=RowType.FP16)) == "freq_cache fp16"
    with pytest.raises(UnknownSystem, match="no parameter"):
        kernel_of("freq_cache[colour=red]", device="cpu")
