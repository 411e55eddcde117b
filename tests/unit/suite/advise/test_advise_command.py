"""`python -m suite advise`."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from suite.advise import advising
from suite.advise import tables as advise_tables
from suite.advise.advising import Advice
from suite.advise.calibrate.calibrate import Calibration
from suite.advise.case import Case
from suite.advise.command import advise_command
from tests.unit.suite.run.console.command_scenes import prepared_kaggle

app = typer.Typer()
app.command()(advise_command)

GPU = ("--hardware", "a100", "--scale", "smoke", "--workload", "avazu", "--batches", "6")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def _advice(*arguments: str) -> Advice:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return Advice.model_validate_json(result.stdout)


def test_described_machine_is_advised_without_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.progress.LINE_EVERY_S", 0.0)
    result = _run(*GPU, "--cache-ratio", "0.3,0.6", "--device-memory", "6MiB", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert re.search(r"^replaying ids: \d+ of \d+", result.stderr, re.MULTILINE)
    assert "modelled for NVIDIA A100" in " ".join(result.stdout.split())
    assert "Recommended: " in result.stdout
    advice = Advice.model_validate_json((tmp_path / "out" / "advice.json").read_text())
    assert advice.basis == "modelled"
    assert advice.choice is not None
    assert advice.choice.best.device_bytes <= 6 * 2**20 == advice.budget_bytes
    with (tmp_path / "out" / "advice.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(advice.predictions)
    for row, one in zip(rows, advice.predictions, strict=True):
        terms = [float(value) for name, value in row.items() if name in {f"{t}_s" for t in advise_tables.TERMS}]
        assert sum(terms) == pytest.approx(one.step_s) == pytest.approx(float(row["step_s"]))
        assert (row["fits"] == "True") == (one.device_bytes <= 6 * 2**20)
    figure = (tmp_path / "out" / "advice.svg").read_text()
    assert "<svg" in figure


def test_table_too_big_for_anything_prints_the_frontier() -> None:
    result = _run(*GPU, "--device-memory", "1kB")
    assert result.exit_code == 0, result.output
    assert "Nothing fits." in result.stdout
    assert "all rows" in result.stdout
    advice = _advice(*GPU, "--device-memory", "1kB")
    assert advice.choice is None
    least = {row.system: row.device_bytes for row in advice.frontier}
    assert min(least.values()) > 1000
    assert least["fbgemm_uvm"] < least["fbgemm_uvm_caching[policy=lru]"] < least["full_gpu"]


def test_where_nothing_was_predicted_nothing_is_said_of_what_fits() -> None:
    result = _run(*GPU, "--systems", "reference,hot_split")
    assert result.exit_code == 0, result.output
    assert "Nothing could be predicted. The smallest device memory" in result.stdout
    said = " ".join(result.stdout.split())
    assert "reference: reference has no model of its costs" in said
    assert "hot_split: what hot_split misses, and takes at each size, has no model here" in said


def test_what_was_decided_for_the_user_is_told(tmp_path: Path) -> None:
    prepared = prepared_kaggle(tmp_path, rows=196)
    result = _run("--hardware", "a100", "--data-dir", str(prepared), "--workload", "criteo_kaggle", "--json")
    assert result.exit_code == 0, result.output
    batch = Advice.model_validate_json(result.stdout).shape.batch_size
    assert batch < 168
    assert f"note: criteo_kaggle: batch {batch} instead of 16384, because there are 168 training rows" in result.stderr
    said = _run("--data-dir", str(prepared), "--workload", "criteo_kaggle@drift")
    assert said.exit_code == 2
    assert "--workload: criteo_kaggle@drift is a synthetic stream" in " ".join(said.output.split())


def test_systems_that_are_refused_are_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def by_hand(cases: Sequence[Case], **_: object) -> Calibration:
        asked.update(case.system for case in cases)
        return Calibration(machine="a cpu", costs=())

    monkeypatch.setattr(advising, "calibrate", by_hand)
    options = ("--workload", "avazu", "--scale", "smoke", "--batches", "6", "--systems", "colossalai_cache,full_gpu")
    advice = _advice(*options)
    assert asked == {"full_gpu"}
    assert {one.system for one in advice.refused} == {"colossalai_cache", "full_gpu"}
    assert {one.system for one in advice.frontier} == {"full_gpu"}


@pytest.mark.slow
def test_own_machine_is_calibrated() -> None:
    options = ("--workload", "avazu", "--scale", "smoke", "--batches", "6", "--seconds", "0.1", "--cache-ratio", "0.3")
    advice = _advice(*options, "--systems", "full_gpu,freq_cache[policy=lfu]")
    assert advice.basis == "calibrated"
    assert {one.system for one in advice.predictions} == {"full_gpu", "freq_cache[policy=lfu]"}


def test_rows_of_half_width_are_weighed_where_systems_take_them() -> None:
    advice = _advice(*GPU, "--row-types", "all", "--systems", "full_gpu,freq_cache[policy=lru]", "--cache-ratio", "0.3")
    found = {(one.system, str(one.row_type)): one for one in advice.predictions if one.cache_ratio in (None, 0.3)}
    wide, narrow = found["full_gpu", "fp32"], found["full_gpu", "fp16"]
    assert wide.device_bytes_by_purpose["all rows"] == 2 * narrow.device_bytes_by_purpose["all rows"]
    assert narrow.terms_s["lookup"] < wide.terms_s["lookup"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "criteo"), "--workload: unknown workload 'criteo': did you mean"),
        (("--workload", ","), "--workload: none named: give all, or some of criteo_kaggle"),
        (("--workload", "all"), "--workload: give one of criteo_kaggle, avazu"),
        (("--device-memory", "much"), "--device-memory: 'much' is not a size"),
        (
            ("--hardware", "abacus"),
            "--hardware abacus: No such file or directory: give a100, h100, h200, or a JSON file like",
        ),
        (("--systems", "freq_cash"), "unknown system 'freq_cash': did you mean freq_cache"),
        (("--systems", "freq_cache[policy=best]"), "'policy' is one of static, lfu, lru"),
        (("--systems", ","), "--systems: none named"),
        (("--cache-ratio", "0.1,2"), "--cache-ratio: 2 is out of range"),
        (("--cache-ratio", "some"), "--cache-ratio: some is out of range"),
        (("--batches", "1"), "--batches"),
        (("--embedding-dim", "5"), "--embedding-dim: 5 is out of range"),
        (("--out", "/dev/null/x"), "--out: cannot make /dev/null/x (Not a directory): choose another directory"),
    ],
)
def test_wrong_option_is_named(arguments: tuple[str, ...], message: str) -> None:
    result = _run("--scale", "smoke", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_tables_hold_in_80_columns() -> None:
    result = CliRunner().invoke(
        app, [*GPU, "--device-memory", "6MiB", "--cache-ratio", "0.3", "--row-types", "all"], env={"COLUMNS": "80"}
    )
    lines = result.stdout.splitlines()
    tables = [line.rstrip() for line in lines if line.startswith(" ")]
    assert len(tables) > 30
    assert max(map(len, tables)) < 80
    assert "…" not in result.stdout
    assert " [look_ahead=16,policy=static]" in " ".join(tables)  # in one piece
    for word in ("samples/s", "plan", "move", "launch"):
        assert word in result.stdout
