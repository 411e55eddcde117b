"""What command lines take for sizes, workloads and datasets."""

from pathlib import Path

import pytest

from suite.records.command_line import BadOption, parse_bytes, parse_prepared, parse_workloads


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 1_000_000),
        ("1.5GiB", 3 << 29),
        ("800MB", 800_000_000),
        (" 2 kib ", 2048),
        ("1TiB", 1 << 40),
        ("9007199254740993", 9007199254740993),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_bytes_of_a_size(text, size):
    assert parse_bytes(text, flag="--device-budget") == size


@pytest.mark.parametrize("text", ["", "0.4", "-1GB", "1,5GB", "GiB", "1 XB", "1e9", "nan"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(BadOption, match=r"--device-budget: '.*' is not a size: write 1\.5GiB, 800MB"):
        parse_bytes(text, flag="--device-budget")


def test_workloads_are_taken_in_order_and_once():
    assert parse_workloads("criteo_1tb, avazu,criteo_1tb") == ("criteo_1tb", "avazu")
    assert parse_workloads("avazu,all") == ("avazu", "criteo_kaggle", "criteo_1tb")
    assert parse_workloads("avazu@drift, mlperf_dlrm_v2") == ("avazu@drift", "mlperf_dlrm_v2")


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("criteo", r"--workloads: unknown workload 'criteo': did you mean criteo_\w+"),
        ("zzz", "--workloads: unknown workload 'zzz': known: criteo_kaggle"),
        (" , ", "--workloads: none named: give all, or some of"),
        ("avzu@drift", "--workloads: unknown workload 'avzu': did you mean avazu"),
        ("avazu@drifty", "--workloads: unknown track 'drifty': choose one of drift, growth"),
    ],
)
def test_unknown_workload_suggests_near_ones(text, message):
    with pytest.raises(BadOption, match=message):
        parse_workloads(text)
