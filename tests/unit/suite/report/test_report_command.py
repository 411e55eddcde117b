"""`python -m suite report`: what it writes, and what it says of bad input."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from suite.records.record import Record
from suite.records.store import RecordStore
from suite.report.publish import read, report_command
from tests.unit.suite.fabricate import gpu_run, record

app = typer.Typer()
app.command()(report_command)


def stored(root: Path, records: list[Record]) -> Path:
    store = RecordStore(root)
    for one in records:
        store.write(one)
    return root


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


def test_a_run_becomes_tables_figures_and_a_page(tmp_path: Path) -> None:
    result = report("--out", stored(tmp_path, gpu_run()))
    assert result.exit_code == 0, result.output
    assert f"Open {tmp_path}/index.html" in result.stdout
    tables = {path.name for path in (tmp_path / "tables").iterdir()}
    assert tables == {f"{name}.{suffix}" for name in ("comparison", "paper") for suffix in ("md", "csv", "tex")}
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["throughput_by_bytes.svg"]
    page = (tmp_path / "index.html").read_text()
    assert "cache[policy=lfu]" in page
    assert str(tmp_path) not in page


def test_files_that_are_no_records_are_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    stored(tmp_path, [record("a", offloads=False)])
    first = sorted((tmp_path / "records").iterdir())[0]
    content = json.loads(first.read_text())
    (tmp_path / "records" / "cut.json").write_text(first.read_text()[:500])
    (tmp_path / "records" / "foreign.json").write_text('{"benchmarks": []}')
    (tmp_path / "records" / "newer.json").write_text(json.dumps({**content, "schema_version": 99}))
    (tmp_path / "simulate").mkdir()
    (tmp_path / "simulate" / "simulation.json").write_text('{"schema_version": 1}')
    result = report("--out", tmp_path)
    assert result.exit_code == 0
    assert "left out" in result.stderr
    assert "simulation.json: is no simulation of this version" in result.stderr
    for name in ("cut.json", "foreign.json", "newer.json"):
        assert name in result.stderr
    assert "schema version 99" in result.stderr
    assert (tmp_path / "index.html").is_file()


def test_of_two_files_with_one_key_the_newer_record_counts_in_any_order(tmp_path: Path) -> None:
    older = record("a", auroc=0.71)
    newer = record("a", auroc=0.72, started_at="2026-11-02T12:00:00+00:00")
    roots = [stored(tmp_path / name, [one]) for name, one in (("older", older), ("newer", newer), ("copy", newer))]
    for order in (roots, roots[::-1]):
        source = read(order)
        assert source.records == (newer,)
        assert source.files == {newer.key: RecordStore(roots[1]).path(newer)}


@pytest.mark.parametrize(
    ("prepare", "arguments", "message"),
    [
        (lambda root: None, ["--out", "{root}"], "has no records/: run python run_bench.py --out"),
        (lambda root: (root / "records").mkdir(), ["--out", "{root}"], "no records to report in"),
        (
            lambda root: ((root / "records").mkdir(), (root / "records" / "x.json").write_text("{")),
            ["--out", "{root}"],
            "x.json: is not JSON, or cut short",
        ),
        (lambda root: None, ["--out", "{root}/o", "--records", "{root}/no"], "--records: "),
        (
            lambda root: stored(root, gpu_run()),
            ["--out", "/dev/null/x", "--records", "{root}"],
            "--out: cannot make /dev/null/x",
        ),
    ],
)
def test_nothing_to_report_is_said_with_what_to_do(prepare, arguments, message, tmp_path: Path) -> None:
    prepare(tmp_path)
    result = report(*(argument.format(root=tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "index.html").exists()
