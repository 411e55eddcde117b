"""From options to cells."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.records.options import (
    BadOption,
    OptimizerName,
    parse_bytes,
    parse_frequencies,
    parse_prepared,
    parse_workloads,
)
from suite.records.scales import SCALES, SMALL, SMOKE
from suite.run.plan import Dataset, Options, check_options, default_scale, fitted_to_epoch, plan_cells, with_steps
from systems.contract import OptimizerKind
from systems.registry import SYSTEMS, UnknownSystem, Variant, parse_systems, split_list
from workloads.schema import SCHEMAS

TB = 10**12


def options(**changes):
    values = {
        "systems": tuple(parse_systems("reference,full_gpu,freq_cache,torchrec_uvm,fbgemm_uvm")),
        "workloads": ("avazu", "criteo_kaggle"),
        "device": "cpu",
        "scale": "smoke",
    }
    return Options(**{**values, **changes})


def planned(**changes):
    return plan_cells(options(**changes), datasets=None, host_bytes=TB)[0]


def steps_of(scale):
    return scale.warmup_steps + scale.windows * scale.window_steps + scale.counted_steps


# Order


def test_rounds_come_one_after_another_and_systems_of_a_workload_side_by_side():
    cells = planned(rounds=3)
    assert [cell.round for cell in cells] == [0] * 10 + [1] * 10 + [2] * 10
    blocks = [[cell.workload for cell in cells[start : start + 5]] for start in range(0, 30, 5)]
    assert blocks == [["avazu"] * 5, ["criteo_kaggle"] * 5] * 3


def test_every_system_runs_once_per_round_and_workload():
    counted = Counter((cell.round, cell.workload, cell.system) for cell in planned(rounds=4))
    assert len(counted) == 4 * 2 * 5
    assert set(counted.values()) == {1}


def test_order_depends_on_the_seed_and_the_round_alone():
    def orders(seed):
        cells = planned(rounds=6, seed=seed)
        return [tuple(cell.system for cell in cells[start : start + 5]) for start in range(0, len(cells), 5)]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    assert len(set(orders(1))) > 4


def test_cells_of_a_workload_differ_in_system_and_round_alone():
    cells = [cell for cell in planned(rounds=2) if cell.workload == "avazu"]
    assert len({cell.setting for cell in cells}) == 1
    assert len({cell.model_dump_json(exclude={"system", "round"}) for cell in cells}) == 1


# Values


def test_what_is_not_asked_for_is_the_scales():
    cell = planned(optimizer="rowwise_adagrad")[0]
    assert (cell.batch_size, cell.embedding_dim, cell.max_rows) == (SMOKE.batch_size, SMOKE.embedding_dim, 50_000)
    assert (cell.lr, cell.cache_ratio, cell.device_budget_bytes) == (
        SMOKE.lr["rowwise_adagrad"],
        SMOKE.cache_ratio,
        None,
    )
    assert cell.steps == steps_of(SMOKE)


def test_every_optimizer_of_the_contract_can_be_asked_for_and_has_a_learning_rate_at_every_scale():
    optimizers = [str(kind) for kind in OptimizerKind]
    assert [str(name) for name in OptimizerName] == optimizers
    for scale in SCALES.values():
        assert list(scale.lr) == optimizers


def test_what_is_asked_for_goes_into_every_cell():
    cells = planned(lr=0.25, batch_size=64, embedding_dim=8, steps=10, seed=7, device_budget_bytes=4096)
    assert {(c.lr, c.batch_size, c.embedding_dim, c.steps, c.seed) for c in cells} == {(0.25, 64, 8, 10, 7)}
    assert {(c.cache_ratio, c.device_budget_bytes) for c in cells} == {(None, 4096)}


def test_real_data_name_their_directory_and_digest_and_have_no_cap():
    dataset = Dataset(folder=Path("data/avazu"), digest="feed", training_rows=10**6, table_rows=10**4)
    cells, notes = plan_cells(options(workloads=("avazu",)), datasets={"avazu": dataset}, host_bytes=TB)
    assert {(c.data, c.data_dir, c.data_digest, c.max_rows) for c in cells} == {("real", "data/avazu", "feed", None)}
    assert notes == []


def test_small_dataset_shrinks_its_own_cells_alone_and_the_note_says_so():
    datasets = {
        "avazu": Dataset(folder=Path("a"), digest="1", training_rows=1000, table_rows=10**4),
        "criteo_kaggle": Dataset(folder=Path("b"), digest="2", training_rows=10**6, table_rows=10**4),
    }
    cells, notes = plan_cells(options(), datasets=datasets, host_bytes=TB)
    assert all(note.startswith("avazu: ") for note in notes)
    assert notes
    for cell in cells:
        assert cell.steps * cell.batch_size <= datasets[cell.workload].training_rows
        if cell.workload == "criteo_kaggle":
            assert (cell.steps, cell.batch_size) == (steps_of(SMOKE), SMOKE.batch_size)


def test_synthetic_stream_is_not_trained_on_past_the_published_epoch():
    cells, notes = plan_cells(
        options(workloads=("avazu",), batch_size=1_000_000, steps=50), datasets=None, host_bytes=TB
    )
    assert cells[0].steps == SCHEMAS["avazu"].train_rows // 1_000_000 == 36
    assert notes == ["avazu: 36 steps, one whole epoch, instead of 50"]


# Steps


@given(st.integers(4, 100_000), st.sampled_from(list(SCALES.values())))
def test_steps_asked_for_are_the_steps_done_with_every_phase_present(steps, scale):
    made = with_steps(scale, steps)
    assert steps_of(made) == steps
    assert min(made.warmup_steps, made.windows, made.window_steps, made.counted_steps) >= 1
    assert made.windows <= scale.windows


@given(st.integers(0, 5_000_000), st.sampled_from(list(SCALES.values())), st.integers(1, 20_000))
def test_no_row_is_trained_on_twice_and_every_change_is_told(rows, scale, batch_size):
    scale = replace(scale, batch_size=batch_size)
    try:
        made, changes = fitted_to_epoch(scale, rows)
    except BadOption as error:
        assert rows // min(batch_size, 16) < 4
        assert str(rows) in str(error)
        return
    assert steps_of(made) >= 4
    assert steps_of(made) * made.batch_size <= rows
    assert any(f"batch {made.batch_size} instead of {batch_size}" in c for c in changes) == (
        made.batch_size != batch_size
    )
    assert any(f"{steps_of(made)} steps" in c for c in changes) == (steps_of(made) != steps_of(scale))
    assert made.batch_size <= batch_size


def test_dataset_that_is_large_enough_changes_nothing():
    assert fitted_to_epoch(SMALL, 10**7) == (SMALL, [])


# Scale


def test_cpu_is_small_whatever_its_memory():
    assert default_scale("criteo_1tb", table_rows=10**8, device="cpu", host_bytes=10**15)[0] is SMALL


@pytest.mark.parametrize("workload", [*SCHEMAS, "avazu@drift", "mlperf_dlrm_v2@recency"])
def test_gpu_is_full_where_the_host_holds_all_rows_and_else_says_what_that_takes(workload):
    asked = options(workloads=(workload,), device="cuda", scale=None)
    needed = int(SCHEMAS[workload.partition("@")[0]].table_rows * 128 * 4 * 1.25)
    cells, notes = plan_cells(asked, datasets=None, host_bytes=needed + 1)
    assert {cell.scale for cell in cells} == {"full"}
    cells, notes = plan_cells(asked, datasets=None, host_bytes=needed - 10**6)
    assert {cell.scale for cell in cells} == {"small"}
    assert notes[0].startswith(f"{workload}: scale small")
    assert f"{needed / 1e9:.0f} GB of host memory" in notes[0]


def test_scale_of_ones_own_data_follows_from_their_own_tables():
    dataset = Dataset(folder=Path("data/my_shop"), digest="feed", training_rows=10**9, table_rows=10**6)
    asked = options(workloads=("my_shop",), device="cuda", scale=None)
    for host_bytes, scale in ((10**9, "full"), (10**8, "small")):
        cells, _ = plan_cells(asked, datasets={"my_shop": dataset}, host_bytes=host_bytes)
        assert {(cell.workload, cell.data, cell.scale) for cell in cells} == {("my_shop", "real", scale)}


def test_default_scale_is_told_and_an_asked_one_needs_no_note():
    assert plan_cells(options(scale=None), datasets=None, host_bytes=TB)[1] == [
        "avazu: scale small, the default without a GPU",
        "criteo_kaggle: scale small, the default without a GPU",
    ]
    assert plan_cells(options(scale="small"), datasets=None, host_bytes=TB)[1] == []


def test_large_workload_falls_back_alone():
    cells, _ = plan_cells(
        options(scale=None, device="cuda", workloads=("avazu", "criteo_1tb")), datasets=None, host_bytes=20 * 10**9
    )
    assert {(cell.workload, cell.scale) for cell in cells} == {("avazu", "full"), ("criteo_1tb", "small")}


# Texts


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 1_000_000),
        ("1B", 1),
        ("1.5GiB", 3 << 29),
        ("800MB", 800_000_000),
        (" 2 kib ", 2048),
        ("0.5KB", 500),
        ("3TB", 3 * 10**12),
        ("1TiB", 1 << 40),
        ("9007199254740993", 9007199254740993),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_bytes_of_a_size(text, size):
    assert parse_bytes(text, flag="--device-budget") == size


@pytest.mark.parametrize(
    "text", ["", "0", "0.4", "-1GB", "1.5", "GiB", "1 XB", "1e9", "one", "1GB2", "nan", "0.0000001KB"]
)
def test_what_is_no_size_is_refused_with_an_example(text):
    if text == "1.5":
        assert parse_bytes(text, flag="--device-budget") == 1
        return
    with pytest.raises(BadOption, match=r"--device-budget: '.*' is not a size: write 1\.5GiB, 800MB"):
        parse_bytes(text, flag="--device-budget")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"batch_size": 0}, "--batch-size: 0"),
        ({"rounds": 0}, "--rounds: 0"),
        ({"steps": 3}, "--steps: 3"),
        ({"lr": 0.0}, "--lr: 0.0"),
        ({"lr": float("nan")}, "--lr: nan"),
        ({"seed": -1}, "--seed: -1"),
        ({"seed": 2**63}, "--seed: 9223372036854775808"),
        ({"cache_ratio": 0.0}, "--cache-ratio: 0.0"),
        ({"cache_ratio": 1.1}, "--cache-ratio: 1.1"),
        ({"cache_ratio": float("nan")}, "--cache-ratio: nan"),
        ({"frequency_prefix": 0.0}, "--frequency-prefix: 0.0"),
        ({"frequency_prefix": 1.5}, "--frequency-prefix: 1.5"),
        ({"frequency_prefix": float("nan")}, "--frequency-prefix: nan"),
        ({"embedding_dim": 30}, "--embedding-dim: 30"),
        ({"embedding_dim": 0}, "--embedding-dim: 0"),
        ({"cache_ratio": 0.1, "device_budget_bytes": 1}, "--cache-ratio and --device-budget exclude each other"),
    ],
    ids=str,
)
def test_option_out_of_range_names_flag_and_value(changes, flag):
    with pytest.raises(BadOption) as caught:
        check_options(options(**changes))
    assert str(caught.value).startswith(flag)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache_ratio": 1.0},
        {"frequency_prefix": 1e-9},
        {"embedding_dim": 4},
        {"steps": 4},
        {"seed": 2**63 - 1},
        {"batch_size": 1},
        {"lr": 1e-9},
    ],
    ids=str,
)
def test_option_at_the_edge_of_its_range_is_taken(changes):
    check_options(options(**changes))


def test_workloads_are_taken_in_order_and_once():
    assert parse_workloads("criteo_1tb, avazu,criteo_1tb") == ("criteo_1tb", "avazu")
    assert parse_workloads("avazu,all") == ("avazu", "criteo_kaggle", "criteo_1tb")


def test_tracks_are_spelled_one_way_whatever_their_parameters_are_given_as():
    text = "avazu@drift, avazu@drift[lifetime=0.10], avazu@flash[peak=.3, ids=8], mlperf_dlrm_v2"
    assert parse_workloads(text) == ("avazu@drift", "avazu@flash[peak=0.3,ids=8]", "mlperf_dlrm_v2")
    cells = planned(workloads=("avazu", "avazu@drift"))
    assert len({cell.setting for cell in cells}) == 2


FOLDERS = {"zoo": Path("d/zoo"), "avazu": Path("d/avazu"), "my_shop": Path("d/my_shop")}


def test_prepared_datasets_of_any_name_are_taken_and_all_are_those_that_are_there():
    assert parse_prepared("all", FOLDERS, data_dir=Path("d")) == ("avazu", "my_shop", "zoo")
    assert parse_prepared("zoo,avazu,zoo", FOLDERS, data_dir=Path("d")) == ("zoo", "avazu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_shp", "--data-dir: d holds no my_shp, only avazu, my_shop, zoo; did you mean my_shop"),
        ("criteo_1tb", "holds no criteo_1tb, only .* Make it: python -m workloads prepare criteo_1tb"),
        ("avazu@drift", "--workloads: avazu@drift is a synthetic stream: leave out --data-dir, or the track"),
        ("", "--workloads: none named: give all, or some of avazu, my_shop, zoo"),
    ],
)
def test_dataset_that_is_not_there_is_refused_with_those_that_are(text, message):
    with pytest.raises(BadOption, match=message):
        parse_prepared(text, FOLDERS, data_dir=Path("d"))


def test_frequencies_are_exact_or_sketched_in_so_many_bytes():
    assert parse_frequencies("exact") is None
    assert parse_frequencies("sketch:64MB") == 64_000_000
    for text in ("", "sketch", "sketch:", "exact:1MB", "bloom:1MB"):
        with pytest.raises(BadOption, match=r"--frequencies: '.*' is not a way to count: write exact, or sketch:64MB"):
            parse_frequencies(text)
    with pytest.raises(BadOption, match="--frequencies: 'much' is not a size"):
        parse_frequencies("sketch:much")


def test_frequencies_tell_settings_apart_and_the_usual_ones_leave_digests_as_they_were():
    usual = planned()[0]
    assert "frequency" not in usual.identity()
    changed = [planned(frequency_prefix=0.1)[0], planned(frequency_sketch_bytes=10**6)[0]]
    assert (changed[0].frequency_prefix, changed[1].frequency_sketch_bytes) == (0.1, 10**6)
    assert len({cell.setting for cell in (usual, *changed)}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("criteo", r"--workloads: unknown workload 'criteo': did you mean criteo_\w+"),
        ("zzz", "--workloads: unknown workload 'zzz': known: criteo_kaggle"),
        (" , ", "--workloads: none named: give all, or some of"),
        ("avzu@drift", "--workloads: unknown workload 'avzu': did you mean avazu"),
        ("avazu@drifty", "--workloads: unknown track 'drifty': choose one of recency, drift"),
        ("avazu@drift[lifetme=1]", "--workloads: @drift has no parameter 'lifetme': it has lifetime"),
    ],
)
def test_unknown_workload_suggests_near_ones(text, message):
    with pytest.raises(BadOption, match=message):
        parse_workloads(text)


# Systems and variants


def test_lists_split_at_commas_outside_brackets():
    assert split_list("a[x=1,y=2], b,,c[z=3] ") == ["a[x=1,y=2]", "b", "c[z=3]"]


def test_bracketed_variants_are_kept_whole_and_written_one_way():
    first, second = parse_systems("fbgemm_uvm_caching[policy=lfu],tests.faults.fakes:Correct")
    assert first == Variant("fbgemm_uvm_caching", (("policy", "lfu"),))
    assert str(second) == "tests.faults.fakes:Correct"
    assert str(Variant.parse("freq_cache[b=2, a=1]")) == "freq_cache[a=1,b=2]"
    assert parse_systems("full_gpu,all,full_gpu")[0] == Variant("full_gpu")
    assert len(parse_systems("all,full_gpu")) == len(SYSTEMS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("freq_cach", "unknown system 'freq_cach': did you mean freq_cache"),
        ("zzzzzz", "unknown system 'zzzzzz': known: reference"),
        ("freq_cache[policy]", "write parameters as parameter=value"),
        ("freq_cache[policy=lfu", "is not a system: write name or name"),
        ("freq cache", "is not a system: write name or name"),
        ("", "no system named: give all"),
    ],
)
def test_unknown_or_malformed_system_says_what_is_known(text, message):
    with pytest.raises(UnknownSystem, match=message):
        parse_systems(text)


@pytest.mark.parametrize(
    ("workload", "optimizer", "lr", "expected"),
    [
        ("mlperf_dlrm_v2", "sgd", None, 0.12),  # 1 over 214 / 26 ids per bag
        ("mlperf_dlrm_v2@drift", "sgd", None, 0.12),
        ("mlperf_dlrm_v2", "sgd", 0.5, 0.5),
        ("mlperf_dlrm_v2", "rowwise_adagrad", None, 0.01),
        ("criteo_1tb", "sgd", None, 1.0),
    ],
)
def test_sgd_on_bags_takes_smaller_steps_unless_told_otherwise(workload, optimizer, lr, expected):
    cells, _ = plan_cells(options(workloads=(workload,), optimizer=optimizer, lr=lr), datasets=None, host_bytes=2**40)
    assert {cell.lr for cell in cells} == {expected}
