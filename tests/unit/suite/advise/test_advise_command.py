"""`python -m suite advise`."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from suite.advise.case import Case
from suite.advise.command import Advice, advise_command, published_rate
from suite.run.cell.feed import open_workload
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from systems.contract import CacheRatio
from tests.unit.suite.run.console.command_scenes import prepared_kaggle

app = typer.Typer()
app.command()(advise_command)

GPU = ("--hardware", "a100", "--scale", "smoke", "--workload", "avazu", "--batches", "6")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def _advice(*arguments: str) -> Advice:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return Advice.model_validate_json(result.stdout)


def test_described_machine_bounds_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.progress.LINE_EVERY_S", 0.0)
    options = (*GPU, "--cache-ratio", "0.3,0.6", "--device-memory", "3MiB")
    result = _run(*options)
    assert result.exit_code == 0, result.output
    assert re.search(r"^replaying ids: \d+ of \d+", result.stderr, re.MULTILINE)
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80
    words = " ".join(result.stdout.split())
    assert "bounds for NVIDIA A100" in words and "It is no prediction: run_bench.py measures." in words
    assert {"compute", "ms", "link", "bound", "it/s"} <= set(words.split()) and "…" not in words
    advice = _advice(*options)
    assert advice.budget_bytes == 3 * 2**20
    for row in advice.rows:
        assert row.least_s is not None
        assert row.least_s.step > 0
        assert row.fits == (sum(row.device_bytes.values()) <= 3 * 2**20)
        assert (row.hit_rate is None) == (row.cache_ratio is None)
    largest = [row for row in advice.rows if row.system == "freq_cache"][-1]
    assert largest.fits
    assert sum(largest.device_bytes.values()) > 0.9 * 3 * 2**20


def test_without_described_hardware_bytes_alone_are_told_and_nothing_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suite.advise.bound.replay", lambda *_: pytest.fail("it was replayed"))
    options = ("--workload", "avazu", "--scale", "smoke", "--device-memory", "1kB")
    shown = _run(*options).stdout
    assert "bound it/s" not in " ".join(shown.split())
    assert "too big" in shown
    rows = _advice(*options).rows
    assert {(row.least_s, row.fits) for row in rows} == {(None, False)}
    full, cached = (next(row for row in rows if row.system == name) for name in ("full_gpu", "freq_cache"))
    assert sum(cached.device_bytes.values()) < sum(full.device_bytes.values())
    assert cached.host_bytes > full.host_bytes == 0


def test_systems_without_a_model_are_named_with_the_reason() -> None:
    advice = _advice(*GPU, "--systems", "hashed,hot_split")
    assert advice.refused == {
        "hashed": "what hashed moves has no model here: run_bench.py measures it",
        "hot_split": "what hot_split takes at each size has no model here: run_bench.py measures it",
    }
    (row,) = advice.rows  # its bytes are known
    assert (row.system, row.least_s) == ("hashed", None)


@pytest.mark.parametrize(
    ("system", "changes", "published"),
    [
        ("full_gpu", {}, 81),
        ("freq_cache", {}, 50),
        ("freq_cache", {"cache_ratio": "0.05"}, None),
        ("full_gpu", {"batch_size": 4096}, None),
        ("fbgemm_uvm", {}, None),
    ],
)
def test_published_rates_stand_beside_the_system_that_moves_the_same_rows(
    system: str, changes: dict[str, object], published: float | None
) -> None:
    setting = {"scale": "full", "batch_size": 16384, "cache_ratio": "0.01"} | changes
    options = Options(systems=system, workloads="criteo_kaggle", **setting)
    cell = plan_cells(options, device="cuda", host_bytes=1 << 40)[0][0]
    case = Case(cell=cell, workload=open_workload(cell), budget=CacheRatio(ratio=cell.cache_ratio))
    assert published_rate(case) == published


def test_what_was_decided_for_the_user_is_told(tmp_path: Path) -> None:
    prepared = prepared_kaggle(tmp_path, rows=196)
    result = _run("--hardware", "a100", "--data-dir", str(prepared), "--workload", "criteo_kaggle", "--json")
    assert result.exit_code == 0, result.output
    batch = Advice.model_validate_json(result.stdout).batch_size
    assert batch < 168
    assert f"note: criteo_kaggle: batch {batch} instead of 16384, because there are 168 training rows" in result.stderr
    said = _run("--data-dir", str(prepared), "--workload", "criteo_kaggle@drift")
    assert said.exit_code == 2
    assert "--workload: criteo_kaggle@drift is a synthetic stream" in " ".join(said.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "criteo"), "--workload: unknown workload 'criteo': did you mean"),
        (("--workload", "all"), "--workload: give one of criteo_kaggle, avazu"),
        (("--device-memory", "much"), "--device-memory: 'much' is not a size"),
        (
            ("--hardware", "abacus"),
            "--hardware abacus: No such file or directory: give a100, h100, h200, or a JSON file like",
        ),
        (("--systems", "freq_cash"), "unknown system 'freq_cash': did you mean freq_cache"),
        (("--systems", "freq_cache[policy=best]"), "'policy' is one of static, lfu, lru"),
        (("--cache-ratio", "0.1,2"), "--cache-ratio: 2 is out of range"),
        (("--batches", "1"), "--batches"),
        (("--tf32",), "--tf32 is of NVIDIA devices"),
    ],
)
def test_wrong_option_is_named(arguments: tuple[str, ...], message: str) -> None:
    result = _run("--scale", "smoke", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
