"""`python -m suite validate`: what it looks at, what it prints, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.suite.fabricate import gpu_run, record
from tests.unit.suite.validate.validate_scenes import PUBLISHED, ROOT, changed, stored, validate


def test_results_of_the_repository_are_valid() -> None:
    result = validate(PUBLISHED)
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    count = len(list(PUBLISHED.glob("**/records/*.json")))
    assert count > 0
    assert line == f"{count} records: {count} valid"


def test_file_folder_of_records_and_results_directory_are_the_same_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = stored(tmp_path / "results", [record()])
    for name in ("stream.json", "deep/down/curves.json", "results/records/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{")
    monkeypatch.chdir(tmp_path)  # below which `results` are checked where no path is given
    for named in ([path], [path.parent], [path.parent.parent], ["."], [], [path, path.parent, tmp_path]):
        result = validate(*named)
        assert (result.exit_code, result.output) == (0, "1 record: 1 valid\n"), named


def test_path_without_records_is_wrong_usage_though_another_has_some(tmp_path: Path) -> None:
    stored(tmp_path / "a", [record()])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "other.json").write_text("{}")
    for name in ("b", "absent"):
        result = validate(tmp_path / "a", tmp_path / name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"error: {tmp_path / name} is no file, and has no JSON file in a folder named records" in result.stderr


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


def test_piped_output_is_the_same_and_needs_no_torch(tmp_path: Path) -> None:
    stored(tmp_path, [record(), record("b")])
    script = (
        "import sys; sys.argv = ['suite', 'validate', sys.argv[1]]; from suite.__main__ import app\n"
        "try: app()\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == validate(tmp_path).output == "2 records: 2 valid\n"
