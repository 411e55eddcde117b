"""Described machines: their files, and costs on them, worked out by hand."""

import json
from pathlib import Path

import pytest
from advise_scenes import case

from suite.advise.costs import Counts, NotCalibrated
from suite.advise.described import EXAMPLES, Attained, DescribedCosts, Hardware, Matmul, load_hardware
from suite.advise.prediction import Prediction, predict
from suite.records.options import BadOption

COUNTS = Counts(lookups=192, distinct=100, misses=30, rows_fetched=30, rows_written_back=20)


def _machine(**changes: object) -> Hardware:
    values: dict[str, object] = {
        "name": "paper",
        "device_memory_bytes": 10**9,
        "memory_gb_per_s": 2e-3,  # 1 MB/s at what kernels attain
        "link_to_device_gb_per_s": 1e-3,
        "link_to_host_gb_per_s": 5e-4,
        "fp32_flops": 2e6,
        "tf32_flops": 8e6,
        "launch_s": 1e-12,
        "host_gather_gb_per_s": 2e-3,
        "host_planning_ids_per_s": 1e3,
        "attained": Attained(memory=0.5, flops=0.5),
        "sources": {"all": "made up"},
    }
    return Hardware.model_validate(values | changes)


def _terms(system: str, hardware: Hardware | None = None, **changes: object) -> Prediction:
    return predict(case(system, device="cuda", **changes), COUNTS, DescribedCosts(hardware or _machine()))


def test_resident_rows_cross_the_device_memory() -> None:
    found = _terms("full_gpu").terms_s
    pooled = 4 * 64 * 3 * 16
    assert found["lookup"] == pytest.approx((192 * 64 + pooled) / 1e6)
    assert found["update"] == pytest.approx((192 * (96 + 64) + 2 * 100 * 64) / 1e6)
    of = case("full_gpu").shape
    assert found["dense"] == pytest.approx(of.dense_flops / 1e6 + 16 * of.activation_values / 1e6)
    assert set(found) == {"dense", "lookup", "update"}


def test_rows_in_place_cross_the_link_per_id_and_twice_per_distinct_row() -> None:
    found = _terms("fbgemm_uvm").terms_s
    assert found["lookup"] == pytest.approx(192 * 64 / 1e6 + 4 * 64 * 3 * 16 / 1e6)
    assert found["update"] == pytest.approx(192 * 160 / 1e6 + 100 * 64 / 1e6 + 100 * 64 / 5e5)
    rowwise = _terms("fbgemm_uvm", optimizer="rowwise_adagrad").terms_s
    assert rowwise["update"] == pytest.approx(found["update"])  # its state is on the device
    pointwise = _terms("fbgemm_uvm", optimizer="adagrad").terms_s
    assert pointwise["update"] == pytest.approx(192 * 160 / 1e6 + 100 * 128 / 1e6 + 100 * 128 / 5e5)


def test_own_cache_moves_records_through_the_host() -> None:
    found = _terms("freq_cache", optimizer="rowwise_adagrad")
    record, sent = 68, 192 * 4 + 64 * 3 * 8
    assert found.terms_s["planning"] == pytest.approx(192 / 1e3)
    moved = 50 * record / 2e6 + (30 * record + sent) / 1e6 + 20 * record / 5e5
    assert found.terms_s["moving"] == pytest.approx(moved)
    assert found.hidden_s == {}


def test_own_cache_moves_records_in_the_type_that_the_host_keeps() -> None:
    found = _terms("freq_cache[slow_rows=fp16]", optimizer="rowwise_adagrad")
    record, sent = 2 * 16 + 4, 192 * 4 + 64 * 3 * 8
    moved = 50 * record / 2e6 + (30 * record + sent) / 1e6 + 20 * record / 5e5
    assert found.terms_s["moving"] == pytest.approx(moved)
    assert found.terms_s["update"] == _terms("freq_cache", optimizer="rowwise_adagrad").terms_s["update"]


def test_device_cache_moves_weights_and_leaves_pointwise_state_uncached() -> None:
    plain = _terms("fbgemm_uvm_caching").terms_s
    assert plain["moving"] == pytest.approx(30 * 64 / 1e6 + 20 * 64 / 5e5)
    assert plain["planning"] == pytest.approx((192 * 96 + 100 * 256) / 1e6)
    pointwise = _terms("fbgemm_uvm_caching", optimizer="adagrad").terms_s
    assert pointwise["moving"] == pytest.approx(plain["moving"] + 100 * 64 / 1e6 + 100 * 64 / 5e5)


def test_look_ahead_hides_what_fits_beside_training() -> None:
    alone, beside = _terms("freq_cache[policy=lfu]"), _terms("freq_cache[policy=lfu,look_ahead=4]")
    total = alone.terms_s["planning"] + alone.terms_s["moving"]
    assert sum(beside.hidden_s.values()) == pytest.approx(total)  # the dense part takes seconds here
    assert sum(beside.terms_s.values()) == pytest.approx(sum(alone.terms_s.values()) - total)
    slow = _terms("freq_cache[policy=lfu,look_ahead=4]", _machine(host_planning_ids_per_s=1.0))
    computing = sum(slow.terms_s[name] for name in ("dense", "lookup", "update"))
    assert slow.hidden_s["planning"] == pytest.approx(computing)
    assert slow.terms_s["planning"] == pytest.approx(192 - computing)


def test_launches_count_where_the_host_is_slower_than_the_device() -> None:
    assert "launches" not in _terms("full_gpu").terms_s
    fast = _machine(fp32_flops=1e18, memory_gb_per_s=1e9, launch_s=1e-3)
    found = _terms("full_gpu", fast).terms_s
    assert sum(found.values()) == pytest.approx(1e-3 * (9 * 4 + 40 + 20), rel=1e-6)


def test_tf32_multiplies_faster_where_the_device_has_it() -> None:
    flops = case("full_gpu").shape.dense_flops

    def dense_s(hardware: Hardware, matmul: Matmul) -> float:
        costs = DescribedCosts(hardware, matmul=matmul)
        return predict(case("full_gpu", device="cuda"), COUNTS, costs).terms_s["dense"]

    assert dense_s(_machine(), Matmul.FP32) - dense_s(_machine(), Matmul.TF32) == pytest.approx(
        flops / 1e6 - flops / 4e6
    )
    assert dense_s(_machine(tf32_flops=None), Matmul.TF32) == dense_s(_machine(), Matmul.FP32)
    assert _terms("full_gpu", tf32=True).terms_s["dense"] == dense_s(_machine(), Matmul.TF32)


def test_system_without_a_model_is_refused() -> None:
    with pytest.raises(NotCalibrated, match=r"reference has no model .* name full_gpu"):
        predict(case("reference", device="cuda"), COUNTS, DescribedCosts(_machine()))
    with pytest.raises(NotCalibrated, match=r"freq_cache\[tier=file\] has no model: a disk, .* are not described"):
        predict(case("freq_cache[tier=file]", device="cuda"), COUNTS, DescribedCosts(_machine()))


# files


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_complete_and_every_figure_has_a_source(name: str) -> None:
    found = load_hardware(name)
    named = {field.strip() for key in found.sources for field in key.split(",")}
    assert named == set(Hardware.model_fields) - {"name", "sources"}
    assert found.device_memory_bytes >= 80e9


def _written(folder: Path, **changes: object) -> Path:
    content = load_hardware("a100").model_dump(mode="json") | changes
    path = folder / "mine.json"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"launch_s": ...}, "mine.json: launch_s: Field required"),
        ({"memory_gb_per_s": -1.0}, "memory_gb_per_s: Input should be greater than 0"),
        ({"memory_gb_per_s": "fast"}, "memory_gb_per_s: Input should be a valid number"),
        ({"colour": "green"}, "colour: Extra inputs are not permitted"),
        ({"attained": {"memory": 2.0, "flops": 0.5}}, "attained.memory: Input should be less than or equal to 1"),
        ({"sources": {}}, "sources: "),
    ],
)
def test_wrong_field_is_named_with_its_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = _written(tmp_path, **changes)
    with pytest.raises(BadOption) as refused:
        load_hardware(str(path))
    assert message in str(refused.value)
    assert "a JSON file like suite/advise/hardware/a100.json" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"--hardware .*mine.json: No such file or directory: give a100, h100, h200, or a JSON"),
        (b"[1]", "mine.json: the file: Input should be an object"),
        (b'{"name":', "Invalid JSON"),
        (b"\xff\xfe\x00", "mine.json: the file: Invalid JSON"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "mine.json").write_bytes(content)
    with pytest.raises(BadOption, match=message):
        load_hardware(str(tmp_path / "mine.json"))
