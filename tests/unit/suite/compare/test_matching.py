import pytest
from compare_scenes import NEXT_DAY, OTHER_MACHINE, STEADY, compared, later

from suite.compare.runs import NoComparison
from tests.unit.suite.fabricate import rounds


def labels(found, in_run="both") -> list[str]:
    return found.cells.loc[found.cells["in_run"] == in_run, "label"].to_list()


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
    assert labels(found, "left_only") == ["cache x criteo_kaggle, batch size 1024"]
    assert labels(found, "right_only") == ["cache x criteo_kaggle, batch size 2048"]


def test_labels_say_only_what_tells_cells_of_a_workload_apart(tmp_path):
    records = [
        *rounds("cache", STEADY, setting={"optimizer": "sgd", "device_budget_bytes": 2**30}),
        *rounds("cache", STEADY, setting={"optimizer": "adagrad"}),
        *rounds("cache", STEADY, setting={"workload": "avazu", "optimizer": "sgd"}),
    ]
    found = compared(tmp_path, records, [one.model_copy(update={"started_at": NEXT_DAY}) for one in records])
    assert sorted(labels(found)) == [
        "cache x avazu",
        "cache x criteo_kaggle, cache ratio 1 %, optimizer adagrad",
        "cache x criteo_kaggle, device budget 1 GiB, optimizer sgd",
    ]


def test_two_machines_are_compared_with_a_warning_and_refused_within_one_run(tmp_path):
    found = compared(tmp_path / "two", rounds("cache", STEADY), later("cache", STEADY, where=OTHER_MACHINE))
    assert labels(found) == ["cache x criteo_kaggle"]
    assert any("of machines, not of code" in warning for warning in found.warnings)
    mixed = [*rounds("cache", STEADY), *rounds("cache", STEADY, where=OTHER_MACHINE)]
    with pytest.raises(NoComparison, match=r"RUN_B: .* has cells of several machines, .*; give each machine's records"):
        compared(tmp_path / "mixed", rounds("cache", STEADY), mixed)
