import os

import pytest
from compare_scenes import NEXT_DAY, STEADY, run_at

from suite.compare.runs import NoComparison, read_run
from suite.records.store import RecordStore
from tests.unit.suite.fabricate import BASELINE, environment, record, rounds, shuffled


def test_run_is_a_results_directory_a_directory_of_records_of_any_name_or_one_record(tmp_path):
    root = run_at(tmp_path / "results", rounds("cache", STEADY))
    assert read_run("RUN_A", root).files == read_run("RUN_A", root / "records").files
    (root / "records").rename(tmp_path / "nightly")
    assert len(read_run("RUN_A", tmp_path / "nightly").files) == 3
    (tmp_path / "nightly" / "torn.json").write_text("{")
    file = tmp_path / "nightly" / RecordStore(root).path(rounds("cache", STEADY)[1]).name
    run = read_run("RUN_A", file)  # its neighbours are left out
    assert (list(run.files), run.problems) == ([file], ())


def test_newest_record_of_a_round_counts_as_in_the_published_tables(tmp_path):
    older = record("cache", samples_per_s=0.5 * BASELINE)
    newer = record("cache", samples_per_s=0.8 * BASELINE, started_at=NEXT_DAY, where=environment(code="changed"))
    run = read_run("RUN_A", run_at(tmp_path, shuffled([older, newer])))
    assert [row.ratio.value for row in run.rows] == [pytest.approx(0.8)]


def test_path_without_a_record_says_what_to_give_and_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "package.json").write_text("{}")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "table.csv").write_text("a,b")
    os.mkfifo(tmp_path / "pipe.json")
    for name, message in (
        ("gone", r"RUN_B: .*gone does not exist; give a results directory"),
        ("", r"RUN_B: .* holds no record .*run_bench.py --out"),
        ("foreign", r"\(skipped: .*package\.json: is JSON but no record.*\); give"),
        ("list.json", "is JSON but no record"),
        ("table.csv", r"ends in \.json"),
        ("pipe.json", r"RUN_B: .*pipe.json is neither a directory nor a record"),
    ):
        with pytest.raises(NoComparison, match=message):
            read_run("RUN_B", tmp_path / name)
