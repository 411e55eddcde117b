"""A case: bytes of the live system and model, bounds on described machines worked out by hand, the machines' files."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from suite.advise.bound import EXAMPLES, Hardware, LeastSeconds, counts_of, least_seconds, load_hardware
from suite.advise.case import Case
from suite.records.command_line import BadOption
from suite.simulate.models import registry as models
from suite.simulate.models.model import Setting, Span, Tally, replay
from suite.simulate.options import open_trace
from systems import registry
from systems.contract import Budget, CacheRatio, DeviceBytes, Tier
from systems.registry import Variant
from tests.unit.suite import fabricate
from workloads.dlrm import build_dlrm

TABLES = (("first", 500), ("second", 300), ("third", 20))


def case(system: str = "full_gpu", *, budget: Budget | None = None, dense_columns: int = 4, **changes: object) -> Case:
    """A system on tables of 820 rows, batches of 64."""
    setting: dict[str, object] = {
        "embedding_dim": 16,
        "batch_size": 64,
        "bottom_mlp": (8,),
        "top_mlp": (8, 1),
        "optimizer": "sgd",
        "device": "cpu",
    }
    cell = fabricate.cell(system, **setting | changes)
    workload = SimpleNamespace(tables=TABLES, dense_columns=dense_columns, batch_lookups=3 * cell.batch_size)
    return Case(cell=cell, workload=workload, budget=budget or CacheRatio(ratio=0.5))


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
    assert case("freq_cache[policy=lru]", device="cuda").beside_bytes["ids of batches"] == 0
    # with lengths and offsets of bags of one
    assert plain.beside_bytes["ids of batches"] == 2 * 8 * (3 * plain.workload.batch_lookups)
    ahead = case("torchrec_uvm", device="cuda").beside_bytes["ids of batches"]  # the next batch is distributed
    assert ahead == 3 * 8 * (3 * plain.workload.batch_lookups)


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


COUNTS = Tally(batches=2, unique_ids=200, rows_fetched=60, rows_written_back=40)
SPAN = Span(counted_from=2, stop=6)


def _machine(**changes: object) -> Hardware:
    values: dict[str, object] = {
        "name": "paper",
        "device_memory_bytes": 10**9,
        "memory_gb_per_s": 1e-3,  # 1 MB/s
        "link_gb_per_s": 5e-4,
        "fp32_flops": 1e6,
        "tf32_flops": 4e6,
        "sources": {"all": "made up"},
    }
    return Hardware.model_validate(values | changes)


def _least(system: str, hardware: Hardware | None = None, **changes: object) -> LeastSeconds:
    return least_seconds(case(system, device="cuda", **changes), COUNTS, hardware or _machine())


def test_resident_rows_cross_the_device_memory_and_no_link() -> None:
    found, of = _least("full_gpu"), case("full_gpu")
    assert (found.link_in, found.link_out) == (0, 0)
    assert found.flops == pytest.approx(of.dense_flops / 1e6)
    model = 2 * 4 * (of.activation_values + of.dense_parameters)
    assert found.device_memory == pytest.approx((model + 2 * 100 * 64) / 1e6)
    assert _least("full_gpu", optimizer="adagrad").device_memory == pytest.approx((model + 2 * 100 * 128) / 1e6)


@pytest.mark.parametrize(
    ("system", "optimizer", "to_device", "to_host"),
    [
        ("fbgemm_uvm", "sgd", 100 * 64, 100 * 64),
        ("fbgemm_uvm", "rowwise_adagrad", 100 * 64, 100 * 64),  # its state is on the device
        ("fbgemm_uvm", "adagrad", 100 * 128, 100 * 128),
        ("freq_cache", "rowwise_adagrad", 30 * 68, 20 * 68),
        ("freq_cache[slow_rows=fp16]", "rowwise_adagrad", 30 * (2 * 16 + 4), 20 * (2 * 16 + 4)),
        ("fbgemm_uvm_caching", "sgd", 30 * 64, 20 * 64),
        ("fbgemm_uvm_caching", "adagrad", (30 + 100) * 64, (20 + 100) * 64),  # state is not cached
        ("cpu_embeddings", "sgd", 4 * 64 * 3 * 16, 4 * 64 * 3 * 16),  # pooled vectors and their gradients
    ],
)
def test_what_a_system_moves_crosses_the_link(system: str, optimizer: str, to_device: int, to_host: int) -> None:
    found = _least(system, optimizer=optimizer)
    assert (found.link_in, found.link_out) == (pytest.approx(to_device / 5e5), pytest.approx(to_host / 5e5))


def test_the_busiest_path_bounds_the_step() -> None:
    found = _least("fbgemm_uvm", _machine(link_gb_per_s=1e-9))
    assert found.step == found.link > found.compute
    assert _least("full_gpu").step == _least("full_gpu").compute


def test_tf32_multiplies_faster_where_the_device_has_it() -> None:
    plain = _least("full_gpu")
    assert _least("full_gpu", tf32=True).flops == pytest.approx(plain.flops / 4)
    assert _least("full_gpu", _machine(tf32_flops=None), tf32=True).flops == plain.flops


def test_cache_is_replayed_with_its_policy_its_look_ahead_and_its_slots() -> None:
    trace = open_trace(workload="avazu", scale="smoke", batch_size=64)
    found = counts_of(case("freq_cache[look_ahead=2,policy=lru,tier=file]"), trace, SPAN)
    model = Variant("freq_cache", (("policy", "lru"), ("look_ahead", "2")))
    tally = replay(models.build(model, Setting(trace=trace, span=SPAN, slots=410)))
    assert 0 < found.unique_misses == tally.unique_misses < found.unique_ids
    assert (found.rows_fetched, found.rows_written_back) == (tally.rows_fetched, tally.rows_written_back)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_complete_and_every_figure_has_a_source(name: str) -> None:
    found = load_hardware(name)
    named = {field.strip() for key in found.sources for field in key.split(",")}
    assert named == set(Hardware.model_fields) - {"name", "sources"}
    assert found.device_memory_bytes >= 80e9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link_gb_per_s": ...}, "mine.json: link_gb_per_s: Field required"),
        ({"memory_gb_per_s": -1.0}, "memory_gb_per_s: Input should be greater than 0"),
        ({"memory_gb_per_s": "fast"}, "memory_gb_per_s: Input should be a valid number"),
        ({"colour": "green"}, "colour: Extra inputs are not permitted"),
        ({"sources": {}}, "sources: "),
        (b"[1]", "mine.json: the file: Input should be an object"),
        (b"\xff\xfe\x00", "mine.json: the file: Invalid JSON"),
        (None, "mine.json: No such file or directory: give a100, h100, h200, or a JSON file like suite/advise/"),
    ],
)
def test_a_file_that_describes_no_machine_is_named_with_the_field(
    tmp_path: Path, changes: dict[str, object] | bytes | None, message: str
) -> None:
    path = tmp_path / "mine.json"
    if isinstance(changes, dict):
        content = load_hardware("a100").model_dump(mode="json") | changes
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    elif changes is not None:
        path.write_bytes(changes)
    with pytest.raises(BadOption) as refused:
        load_hardware(str(path))
    assert str(refused.value).startswith("--hardware ")
    assert message in str(refused.value)
