import os

import pytest
from compare_scenes import NEXT_DAY, STEADY, run_at

from suite.compare.runs import NoComparison, read_run
from suite.records.store import RecordStore
from tests.unit.suite.fabricate import BASELINE, environment, record, rounds, shuffled


def test_run_is_a_results_directory_or_a_directory_of_records_of_any_name(tmp_path):
    root = run_at(tmp_path / "results", rounds("cache", STEADY))
    assert read_run("RUN_A", root).files == read_run("RUN_A", root / "records").files
    assert len(read_run("RUN_A", root).files) == 3
    (root / "records").rename(tmp_path / "nightly")
    assert len(read_run("RUN_A", tmp_path / "nightly").files) == 3


def test_one_record_leaves_its_neighbours_out(tmp_path):
    root = run_at(tmp_path, [*rounds("cache", STEADY), *rounds("other", STEADY)])
    (root / "records" / "torn.json").write_text("{")
    file = RecordStore(root).path(rounds("cache", STEADY)[1])
    run = read_run("RUN_A", file)
    assert list(run.files) == [file]
    assert run.problems == ()


def test_newest_record_of_a_round_counts_as_in_the_published_tables(tmp_path):
    older = record("cache", samples_per_s=0.5 * BASELINE)
    newer = record("cache", samples_per_s=0.8 * BASELINE, started_at=NEXT_DAY, where=environment(code="changed"))
    for records in ([older, newer], [newer, older]):
        run = read_run("RUN_A", run_at(tmp_path, shuffled(records)))
        assert [row.ratio.value for row in run.rows] == [pytest.approx(0.8)]


def test_path_without_a_record_says_what_to_give(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "package.json").write_text("{}")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "table.csv").write_text("a,b")
    for name, message in (
        ("gone", r"RUN_B: .*gone does not exist; give a results directory"),
        ("", r"RUN_B: .* holds no record .*run_bench.py --out"),
        ("foreign", r"\(skipped: .*package\.json: is JSON but no record.*\); give"),
        ("list.json", "is JSON but no record"),
        ("table.csv", r"ends in \.json"),
    ):
        with pytest.raises(NoComparison, match=message):
            read_run("RUN_B", tmp_path / name)


def test_pipe_in_place_of_a_run_is_refused_and_not_waited_for(tmp_path):
    RecordStore(tmp_path).write(record("full_gpu"))
    pipe = tmp_path / "records" / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(NoComparison, match=r"RUN_A: .*pipe.json is neither a directory nor a record"):
        read_run("RUN_A", pipe)
