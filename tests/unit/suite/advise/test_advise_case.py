"""Bytes of a case are those of the live system, those of its dense part those of the live model."""

import pytest
import torch
from advise_scenes import case
from torch.utils.flop_counter import FlopCounterMode
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from systems import registry
from systems.contract import CacheRatio, DeviceBytes, Tier
from systems.registry import Variant
from workloads.dlrm import build_dlrm


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
    assert found.host_bytes == 0  # on a CPU they compute where they lie


@pytest.mark.parametrize("budget", [CacheRatio(ratio=0.25), DeviceBytes(total_bytes=25_000)])
def test_cache_has_the_slots_and_bytes_that_are_predicted(budget: CacheRatio | DeviceBytes) -> None:
    found = case("freq_cache[policy=lru]", budget=budget, optimizer="rowwise_adagrad")
    live = registry.load(Variant("freq_cache"))(found.spec)
    ids = torch.arange(3 * 64) % 20
    live(KeyedJaggedTensor.from_offsets_sync(["first", "second", "third"], ids, torch.arange(193)))
    held = sum(size for (place, _), size in live.memory().items() if place is Tier.DEVICE)
    assert found.slots == live.caches[0].planner.slots
    assert found.device_bytes["cached rows"] == found.slots * (16 * 4 + 4)
    assert held <= _embeddings(found.device_bytes)
    if isinstance(budget, DeviceBytes):
        assert 0.9 * budget.total_bytes < _embeddings(found.device_bytes) <= budget.total_bytes


def test_budget_too_small_leaves_no_slots_and_says_so() -> None:
    found = case("freq_cache[policy=lru]", budget=DeviceBytes(total_bytes=100))
    assert found.slots == 0
    assert "too small" in found.support.reason


def test_on_a_gpu_rows_stay_on_the_host_and_ids_go_where_a_system_wants_them() -> None:
    plain = case("fbgemm_uvm", device="cuda", optimizer="rowwise_adagrad")
    assert plain.device_bytes["row-wise state of all rows"] == 4 * 820
    assert plain.host_bytes == case("cpu_embeddings", device="cuda").host_bytes == 820 * 64
    cached = case("fbgemm_uvm_caching", device="cuda", budget=CacheRatio(ratio=0.25))
    assert cached.slots == 32 * 7  # 205 rows in whole sets of 32
    assert cached.device_bytes["cached rows"] == cached.slots * (16 * 4 + 16)
    assert cached.device_bytes["index and row-wise state of all rows"] == 4 * 820
    assert case("freq_cache[policy=lru]", device="cuda").beside_bytes["ids of two batches"] == 0
    # with lengths and offsets of bags of one
    assert plain.beside_bytes["ids of two batches"] == 2 * 8 * (3 * plain.workload.batch_lookups)


def test_parameters_and_flops_are_those_that_torch_counts() -> None:
    sizes = {"bottom_mlp": (64, 32), "top_mlp": (64, 32, 1), "dense_columns": 13}
    of = case(**sizes)
    names = [name for name, _ in of.workload.tables]
    rows = torch.rand(64, 48, requires_grad=True)

    class Given(torch.nn.Module):
        def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
            return [EmbeddingBagConfig(name=n, embedding_dim=16, num_embeddings=9, feature_names=[n]) for n in names]

        def is_weighted(self) -> bool:
            return False

        def forward(self, _: object) -> KeyedTensor:
            return KeyedTensor(names, [16] * 3, rows)

    model = build_dlrm(Given(), seed=0, device=torch.device("cpu"), embedding_dim=16, **sizes)
    assert of.dense_parameters == sum(parameter.numel() for parameter in model.parameters())
    features = KeyedJaggedTensor.from_offsets_sync(names, torch.zeros(192, dtype=torch.int64), torch.arange(193))
    with FlopCounterMode(display=False) as counter:
        model(dense_features=torch.rand(64, 13), sparse_features=features).sum().backward()
    assert counter.get_total_flops() == pytest.approx(of.dense_flops, rel=0.01)
