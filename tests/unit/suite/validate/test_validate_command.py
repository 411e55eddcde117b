"""`python -m suite validate`: what it looks at, what it prints, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.records.record import Record
from tests.unit.suite.fabricate import gpu_run, record
from tests.unit.suite.validate.validate_scenes import PUBLISHED, ROOT, changed, stored, validate


def test_results_of_the_repository_are_valid() -> None:
    result = validate(PUBLISHED)
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    count = len(list(PUBLISHED.glob("**/records/*.json")))
    assert count > 0
    assert line == f"{count} records: {count} valid"


def test_results_are_checked_where_no_path_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missing = validate()
    assert missing.exit_code == 2
    assert "error: no such file or directory: results; name record files or results directories" in missing.stderr
    stored(tmp_path / "results", [record()])
    there = validate()
    assert there.exit_code == 0
    assert there.output == "1 record: 1 valid\n"


def test_file_folder_of_records_and_results_directory_are_the_same_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = stored(tmp_path / "run", [record()])
    for named in (path, path.parent, path.parent.parent, tmp_path):
        result = validate(named)
        assert (result.exit_code, result.output) == (0, "1 record: 1 valid\n"), named
    assert validate(path, path.parent, tmp_path).output == "1 record: 1 valid\n"
    monkeypatch.chdir(path.parent)
    assert validate(".").output == "1 record: 1 valid\n"


def test_other_json_files_and_hidden_folders_are_not_looked_at(tmp_path: Path) -> None:
    stored(tmp_path, [record()])
    for name in ("stream.json", "deep/down/curves.json", ".hidden/records/x.json", "records/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{")
    result = validate(tmp_path)
    assert (result.exit_code, result.output) == (0, "1 record: 1 valid\n")


def test_path_without_records_is_wrong_usage_though_another_has_some(tmp_path: Path) -> None:
    stored(tmp_path / "a", [record()])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "other.json").write_text("{}")
    result = validate(tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: no JSON file in a folder named records in {tmp_path / 'b'}: name the results" in result.stderr


def test_directory_that_cannot_be_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, [record()])
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "records":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    result = validate(tmp_path)
    assert result.exit_code == 2
    assert f"error: cannot read {tmp_path / 'records'}: Permission denied; make it readable" in result.stderr


def test_every_problem_is_a_line_with_its_file_and_the_rest_is_checked(tmp_path: Path) -> None:
    records = gpu_run()
    paths = stored(tmp_path, records)
    changed(paths[0], "measurement.quality.auroc", 1.5)
    changed(paths[1], "schema_version", 9)
    paths[2].write_text("{")
    folder = paths[0].with_name("a.json")
    folder.mkdir()
    result = validate(tmp_path)
    assert result.exit_code == 1
    *problems, summary = result.output.splitlines()
    assert summary == f"{len(records) + 1} records: {len(records) - 3} valid, 4 invalid"
    said = dict(line.split(": ", 1) for line in problems)
    assert len(said) == len(problems) == 4
    assert said[str(paths[0])] == "measurement.quality.auroc: Input should be less than or equal to 1, found 1.5"
    assert said[str(paths[1])] == (
        "has schema version 9, this suite reads 1: read it with the suite that wrote it, or measure it again"
    )
    assert said[str(paths[2])].startswith("is not JSON, or cut short")
    assert said[str(folder)].startswith("cannot be read: it is no file")


def test_five_findings_of_a_file_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    (path,) = stored(tmp_path, [record()])
    changed(path, "cell", {})
    lines = validate(path).output.splitlines()
    assert len(lines) == 7
    assert all(line.startswith(f"{path}: cell.") for line in lines[:5])
    hidden = int(lines[5].removeprefix(f"{path}: and ").removesuffix(" more"))
    everything = json.loads(validate(path, "--json").output)["files"][0]["problems"]
    assert len(everything) == 5 + hidden > 10


def test_warning_is_told_and_the_record_is_valid(tmp_path: Path) -> None:
    (path,) = stored(tmp_path, [record(setting={"data_dir": "/data/criteo"})])
    result = validate(path)
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == (
        f"{path}: warning: cell.data_dir: names a path of its machine, '/data/criteo'"
    )


def test_json_has_the_same_for_machines(tmp_path: Path) -> None:
    good, bad = stored(tmp_path, [record("a"), record("b", notes=("see /tmp/x",))])
    changed(bad, "measurement.quality.auroc", 2)
    (tmp_path / "other.json").write_text("{}")
    result = validate(tmp_path, "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    files = said.pop("files")
    assert said == {
        "schema_version": 1,
        "records": 2,
        "valid": 1,
        "invalid": 1,
    }
    assert files == [
        {"path": str(good), "valid": True, "problems": [], "warnings": []},
        {
            "path": str(bad),
            "valid": False,
            "problems": [
                {"where": "measurement.quality.auroc", "what": "Input should be less than or equal to 1, found 2"}
            ],
            "warnings": [],
        },
    ]


def test_schema_is_printed_alone() -> None:
    result = validate("--print-schema")
    assert result.exit_code == 0
    assert json.loads(result.output)["properties"].keys() == Record.model_fields.keys()


def test_piped_output_is_the_same_and_needs_no_torch(tmp_path: Path) -> None:
    stored(tmp_path, [record(), record("b", notes=("see /tmp/x",))])
    script = (
        "import sys; sys.argv = ['suite', 'validate', sys.argv[1]]; from suite.__main__ import app\n"
        "try: app()\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == validate(tmp_path).output
