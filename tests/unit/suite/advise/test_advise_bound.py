"""Bounds on described machines, worked out by hand; counts from replays; the machines' files."""

import json
from pathlib import Path

import pytest
from advise_scenes import case

from suite.advise.bound import EXAMPLES, Hardware, LeastSeconds, counts_of, least_seconds, load_hardware
from suite.records.command_line import BadOption
from suite.simulate.models import registry as models
from suite.simulate.models.model import Setting, Span, Tally, replay
from suite.simulate.options import open_trace
from systems.registry import Variant

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
