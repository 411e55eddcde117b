"""Two runs: how they are read, how cells are matched and named, whose speed changed, and what else."""

import pytest
from compare_scenes import NEXT_DAY, OTHER_MACHINE, STEADY, compared, later, run_at, scaled, welch_interval

from suite.compare.compare import Unjudged, read_run
from suite.records.command_line import BadOption
from tests.unit.suite.fabricate import BASELINE, environment, record, rounds, shuffled


def test_newest_record_of_a_round_counts_as_in_the_published_tables(tmp_path):
    older = record("cache", samples_per_s=0.5 * BASELINE)
    newer = record("cache", samples_per_s=0.8 * BASELINE, started_at=NEXT_DAY, where=environment(code="changed"))
    run = read_run("RUN_A", run_at(tmp_path, shuffled([older, newer])))
    assert [row.ratio.value for row in run.rows.values()] == [pytest.approx(0.8)]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"RUN_B: .* holds no record that can be compared; give another"),
        ({"a.json": "{}", "b.json": "[]"}, r"\(skipped: .*a\.json: is JSON but no record.* and 1 more\); give"),
    ],
)
def test_path_without_a_record_says_what_to_give(tmp_path, files, message):
    (tmp_path / "records").mkdir()
    for name, text in files.items():
        (tmp_path / "records" / name).write_text(text)
    with pytest.raises(BadOption, match=message):
        read_run("RUN_B", tmp_path)


def test_cell_of_two_machines_is_refused_within_one_run(tmp_path):
    mixed = [*rounds("cache", STEADY), *rounds("cache", STEADY, where=OTHER_MACHINE)]
    with pytest.raises(BadOption, match=r"RUN_B: .* has cells of several machines, .*; give each machine's records"):
        read_run("RUN_B", run_at(tmp_path, mixed))


def labels(found) -> list[str]:
    return [pair.label for pair in found.pairs]


def test_cells_are_matched_by_their_whole_configuration_but_for_where_the_data_lie(tmp_path):
    small, large = ({"batch_size": size, "data": "real", "data_digest": "feed"} for size in (1024, 4096))
    found = compared(
        tmp_path,
        [*rounds("cache", STEADY, setting=small), *rounds("cache", STEADY, setting=large | {"data_dir": "/a"})],
        [
            *later("cache", STEADY, setting=large | {"data_dir": "/b"}),
            *later("cache", STEADY, setting=small | {"batch_size": 2048}),
        ],
    )
    assert labels(found) == ["cache x criteo_kaggle, batch size 4096"]
    assert list(found.only_before) == ["cache x criteo_kaggle, batch size 1024"]
    assert list(found.only_after) == ["cache x criteo_kaggle, batch size 2048"]


def test_labels_say_only_what_tells_cells_of_a_workload_apart(tmp_path):
    records = [
        *rounds("cache", STEADY, setting={"optimizer": "sgd", "device_budget_bytes": 2**30}),
        *rounds("cache", STEADY, setting={"optimizer": "adagrad"}),
        *rounds("cache", STEADY, setting={"optimizer": "sgd", "host_budget_bytes": 2**29}),
        *rounds("cache", STEADY, setting={"workload": "avazu", "optimizer": "sgd"}),
    ]
    found = compared(tmp_path, records, [one.model_copy(update={"started_at": NEXT_DAY}) for one in records])
    assert sorted(labels(found)) == [
        "cache x avazu",
        "cache x criteo_kaggle, cache ratio 1 %, optimizer adagrad",
        "cache x criteo_kaggle, device budget 1 GiB, optimizer sgd",
        "cache x criteo_kaggle, host budget 512 MiB, optimizer sgd",
    ]


def pair_of(comparison, system):
    return next(pair for pair in comparison.pairs if pair.before.system == system)


def test_ratio_and_interval_are_those_computed_independently(tmp_path):
    before, after = [1000.0, 1020.0, 990.0], [870.0, 905.0, 880.0, 899.0]
    pair = pair_of(compared(tmp_path, rounds("cache", before), later("cache", after)), "cache")
    assert (pair.ratio.value, pair.ratio.low, pair.ratio.high) == pytest.approx(welch_interval(after, before))
    assert (pair.slower, pair.unjudged) == (True, None)


def test_machine_that_slowed_down_with_the_baseline_is_no_slower_code(tmp_path):
    slow = BASELINE / 2
    found = compared(
        tmp_path,
        [*rounds("full_gpu", [BASELINE] * 3), *rounds("cache", scaled(0.5))],
        [*later("full_gpu", [slow] * 3, baseline=slow), *later("cache", scaled(0.25), baseline=slow)],
    )
    pair = pair_of(found, "cache")
    assert [row.ratio.value for row in (pair.before, pair.after)] == [pytest.approx(0.5, rel=1e-3)] * 2
    assert (pair.ratio.value, pair.beyond_noise) == (1.0, False)
    baseline = pair_of(found, "full_gpu")
    assert baseline.unjudged is Unjudged.IS_THE_BASELINE
    assert [row.steps_per_s for row in (baseline.before, baseline.after)] == [pytest.approx(100), pytest.approx(50)]


def test_records_copied_from_one_run_to_the_other_are_no_second_measurement(tmp_path):
    shared = rounds("cache", STEADY)
    found = compared(tmp_path, shared, [*shared, *later("cache", STEADY, setting={"seed": 2})])
    assert [(pair.unjudged, pair.ratio) for pair in found.pairs] == [(Unjudged.SAME_RECORDS, None)]


def changed(part: str, **changes: object):
    """A later run, with other figures in a part of its measurements where they have it: traffic is counted once."""
    found = []
    for one in later("cache", STEADY):
        inner = getattr(one.measurement, part)
        inner = inner and inner.model_copy(update=changes)
        found.append(one.model_copy(update={"measurement": one.measurement.model_copy(update={part: inner})}))
    return found


MB = 10**6


@pytest.mark.parametrize(
    ("field", "within", "beyond", "text"),
    [
        ("quality.auroc", 0.79119, 0.78900, "AUROC 0.79110 -> 0.78900"),
        ("memory.device_allocated_bytes", 1262 * MB, 1375 * MB, "peak allocated on the device 1,250 MB -> 1,375 MB"),
        (
            "memory.anatomy_bytes",
            {"device/rows": 172_000_000, "device/state": 1_350_000, "host/rows": 1},
            {"device/rows": 172_000_000, "device/state": 1_350_000, "device/index": 4_000_000, "host/rows": 1},
            "index on the device 0 MB -> 4.00 MB",
        ),
        ("traffic.unique_misses", 50_900, 60_000, "hit rate 95.00 % -> 94.00 %"),
        ("traffic.bytes_fetched", 26_050_000, 28_380_000, "fetched per step 2.58 MB -> 2.84 MB"),
        ("traffic.bytes_written_back", 20_500_000, 0, "written back per step 2.06 MB -> 0 MB"),
    ],
)
def test_change_is_listed_from_its_tolerance_on(tmp_path, field, within, beyond, text):
    part, _, name = field.partition(".")
    for value, said in ((within, []), (beyond, [text])):
        found = compared(tmp_path / str(len(said)), rounds("cache", STEADY), changed(part, **{name: value}))
        assert [change for pair in found.pairs for _, change in pair.changes()] == said


def test_everything_that_differs_between_environments_is_called_out_and_nothing_of_equal_ones(tmp_path):
    changes = {
        "cpu": "Intel Xeon 6980P", "memory_bytes": 256 * 10**9, "driver": "580.1", "packages": {"torch": "2.14.0"},
        "threads": 32, "code": "beef", "dirty": True, "system_code": "new",
    }  # fmt: skip
    before = rounds("mine:Cache", STEADY, where=environment(system_code="old"))
    found = compared(tmp_path / "other", before, later("mine:Cache", STEADY, where=environment(**changes)))
    assert [f"{name}: {before} -> {after}" for name, before, after in found.differences] == [
        "cpu: AMD EPYC 7543 32-Core Processor -> Intel Xeon 6980P",
        "memory_bytes: 128.0 GB -> 256.0 GB",
        "driver: 570.10 -> 580.1",
        "code: c0de -> beef",
        "dirty: False -> True",
        "threads: 16 -> 32",
        "code of mine:Cache: old -> new",
        "torch: 2.13.0 -> 2.14.0",
        "torchrec: 1.8.0 -> none",
    ]
    assert compared(tmp_path / "same", rounds("cache", STEADY), later("cache", STEADY)).differences == ()
