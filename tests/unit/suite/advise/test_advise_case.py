"""Bytes of a case are those of the live system, its shape's those of the live model; the smallest that trains."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from advise_scenes import TABLES, case, shape
from torch.utils.flop_counter import FlopCounterMode
from torchrec import KeyedJaggedTensor, KeyedTensor

from suite.advise.calibrate.cut import DensePart
from suite.advise.calibrate.streams import STREAMS, CalibrationTables
from suite.advise.case import Case, RowType, Weighed
from suite.advise.frontier import frontier, least_embedding_bytes
from suite.advise.shape import Shape
from suite.run.cell.stream import open_workload
from suite.run.plan import Options, plan_cells
from systems import registry
from systems.contract import CacheRatio, DeviceBytes, OptimizerKind, SparseOptimizer, Tier, WorkingSetTooLarge
from systems.registry import UnknownSystem, Variant

LARGEST = 150


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
    assert plain.model_bytes == 4 * (plain.dense_parameters + plain.peak_values)


def test_systems_that_compute_alike_share_a_kernel() -> None:
    for name in ("full_gpu", "fbgemm_uvm", "fbgemm_uvm_caching[policy=lfu]"):
        assert case(name).kernel == Weighed(system="full_gpu")
    assert case("torchrec_uvm_caching").kernel == Weighed(system="torchrec_uvm")
    assert case("fbgemm_uvm", device="cuda").kernel == Weighed(system="fbgemm_uvm")
    assert case("freq_cache", row_type=RowType.FP16).kernel.label == "freq_cache fp16"
    with pytest.raises(UnknownSystem, match="no parameter"):
        _ = case("freq_cache[colour=red]").system_class


# shapes


def test_parameters_and_flops_are_those_that_torch_counts() -> None:
    of = shape(bottom_mlp=(64, 32), top_mlp=(64, 32, 1), dense_columns=13)
    tables = CalibrationTables(of)
    dense = DensePart(of, tables.configs(), SparseOptimizer(kind=OptimizerKind.SGD, lr=0.1))
    assert of.dense_parameters == sum(parameter.numel() for parameter in dense.model.parameters())
    batch = tables.batch(STREAMS[0], np.random.default_rng(0))
    pooled = KeyedTensor([table.name for table in tables.configs()], [16] * 3, torch.rand(64, 48))
    with FlopCounterMode(display=False) as counter:
        dense.step(batch, pooled)
    first_layer = 2 * 64 * 13 * 64  # whose input needs no gradient
    assert counter.get_total_flops() == pytest.approx(of.dense_flops - first_layer, rel=0.01)


def _shapes(*workloads: str, batch_size: int | None = None) -> list[Shape]:
    options = Options(
        systems=(Variant("full_gpu"),), workloads=workloads, device="cpu", scale="smoke", batch_size=batch_size
    )
    cells, _ = plan_cells(options, datasets=None, host_bytes=1 << 34)
    return [Shape.of(cell, open_workload(cell)) for cell in cells]


def test_cells_of_nearly_equal_tables_share_a_shape_and_bags_make_it_hotter() -> None:
    kaggle, terabyte, avazu = _shapes("criteo_kaggle", "criteo_1tb", "avazu")
    assert kaggle == terabyte != avazu
    assert (kaggle.rows, kaggle.batch_lookups) == (50_000, 26 * 256)
    (multi_hot,) = _shapes("mlperf_dlrm_v2", batch_size=8)
    assert multi_hot.hotness == 9  # 214 ids in 26 bags, rounded up


# the frontier


def _train(found: Case, budget: int) -> None:
    """One batch of `LARGEST` distinct rows within a byte budget."""
    sized = replace(found, budget=DeviceBytes(total_bytes=budget))
    system = registry.load(Variant.parse(found.system))(sized.spec)
    ids = torch.cat([torch.arange(64) % 64, torch.arange(64) % 66, torch.arange(64) % 22 % 20])
    assert sum(ids[64 * t : 64 * t + 64].unique().numel() for t in range(3)) == 148
    ids[2 * 64 - 1] = 299
    names = [name for name, _ in TABLES]
    pooled = system(KeyedJaggedTensor.from_offsets_sync(names, ids, torch.arange(193))).values()
    pooled.backward(torch.ones_like(pooled))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_own_cache_trains_at_its_frontier_and_not_with_a_row_less(optimizer: str) -> None:
    found = case("freq_cache[policy=lru]", optimizer=optimizer)
    least = least_embedding_bytes(found, largest=148)
    _train(found, least)
    with pytest.raises(WorkingSetTooLarge):
        _train(found, least - found.record_bytes)


def test_frontier_adds_the_model_and_names_what_dominates() -> None:
    found = frontier(case("freq_cache[policy=lru]"), largest=LARGEST)
    whole = case("freq_cache[policy=lru]")
    embeddings = least_embedding_bytes(whole, largest=LARGEST)
    assert embeddings - whole.record_bytes < found.device_bytes - whole.shape.model_bytes <= embeddings
    assert found.dominated_by == "model and activations"
    resident = frontier(case("full_gpu", batch_size=1), largest=3)
    assert resident.dominated_by == "all rows"
    assert resident.device_bytes == 820 * 64 + case("full_gpu", batch_size=1).shape.model_bytes


def test_uvm_trains_with_next_to_nothing_but_counts_every_row() -> None:
    plain = frontier(case("fbgemm_uvm", device="cuda", optimizer="rowwise_adagrad"), largest=LARGEST)
    of = case("fbgemm_uvm", device="cuda", optimizer="rowwise_adagrad")
    ids = 2 * 8 * (3 * of.batch_lookups)  # with lengths and offsets of bags of one
    assert of.beside_bytes == {"model and activations": of.shape.model_bytes, "ids of two batches": ids}
    assert plain.device_bytes == 4 * 820 + of.shape.model_bytes + ids
    assert plain.host_bytes == 820 * 64
    cached = frontier(case("fbgemm_uvm_caching", device="cuda"), largest=LARGEST)
    assert cached.device_bytes == 4 * 820 + 32 * (64 + 16) + case("full_gpu").shape.model_bytes + ids


def test_ids_are_on_the_device_where_a_system_wants_them_there() -> None:
    assert case("freq_cache[policy=lru]", device="cuda").beside_bytes["ids of two batches"] == 0
    assert case("full_gpu", device="cpu").beside_bytes["ids of two batches"] == 0


def test_system_that_never_trains_has_no_frontier() -> None:
    found = case("full_gpu", optimizer="adam")
    assert frontier(found, largest=LARGEST) is None
    assert "no Adam on a CPU" in found.support.reason
