"""The gate judges ratios as it says and refuses what it cannot judge; committed limits are up to date."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ratio_gate

PROJECT = Path(__file__).resolve().parents[4]
COMMITTED = PROJECT / "results" / "microbench"
UNSUPPORTED = {"test_embedding_step[colossalai_cache-rowwise_adagrad]"}
"""Benchmarks that are skipped on a CPU."""


def run_of(own: list[float], beside: list[float], *names: str, **changed: Any) -> dict[str, Any]:
    """Benchmarks of ours, `plan` if none is named, beside a gather."""
    work = {"unit": "ids", "units": 1_000, "threads": 1, "device": "cpu", "clock": "time.process_time"}
    environment = {"machine": "m1", "cpu": "EPYC", "cores": 2, "gpu": None, "code": "c0de"}
    info = {**work, "load_average": 0.5, "environment": environment, **changed}
    ours = {**info, "beside": {"name": "gather", "seconds": beside}}
    measured = [{"name": name, "stats": {"data": own}, "extra_info": ours} for name in names or ("plan",)]
    gather = {"name": "gather", "stats": {"data": [9.0]}, "extra_info": info}
    return {"datetime": "2026-11-01T12:00:00+00:00", "benchmarks": [*measured, gather]}


class Files:
    """Runs and limits in a directory, and the gate called on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.limits = folder / "limits.json"
        self._capsys = capsys
        self.out = self.error = ""

    def gate(self, *runs: Any, write: bool = False) -> int:
        paths = [self.folder / f"run{number}.json" for number, _ in enumerate(runs)]
        for path, run in zip(paths, runs, strict=True):
            path.write_text(run if isinstance(run, str) else json.dumps(run))
        code = ratio_gate.main([*map(str, paths), "--limits", str(self.limits), *(["--write"] if write else [])])
        self.out, self.error = self._capsys.readouterr()
        return code


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    return Files(tmp_path, capsys)


def test_limit_is_the_worst_ratio_seen_with_headroom_and_names_what_was_seen(files: Files) -> None:
    assert files.gate(run_of([2.0], [1.0]), run_of([3.0], [1.0]), write=True) == 0
    limits = json.loads(files.limits.read_text())["limits"]
    assert limits["plan"]["limit"] == 3.0 * ratio_gate.HEADROOM
    assert limits["plan"]["seen"] == [2.0, 3.0]
    assert (limits["plan"]["beside"], limits["plan"]["units"], limits["plan"]["threads"]) == ("gather", 1_000, 1)


@pytest.mark.parametrize(("own", "beside", "code"), [(2.5, 1.0, 0), (25.0, 10.0, 0), (2.51, 1.0, ratio_gate.BEYOND)])
def test_exit_code_turns_one_just_beyond_the_limit_however_slow_the_machine_is(
    files: Files, own: float, beside: float, code: int
) -> None:
    files.gate(run_of([2.0], [1.0]), write=True)
    assert files.gate(run_of([own], [beside])) == code
    assert ("BEYOND" in files.out) == ("beyond the limit: plan" in files.error) == bool(code)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ('{"benchmarks": [', "Invalid JSON"),
        ({"datetime": "", "benchmarks": []}, "benchmarks: List should have at least 1 item"),
        (run_of([], [1.0]), "stats.data: List should have at least 1 item"),
        (run_of([0.0], [1.0]), "greater than 0"),
        (run_of([1.0], [1.0], "plan", "step"), "limits.json lacks step"),
        (run_of([1.0], [1.0], "step"), "the run lacks plan"),
        (run_of([1.0], [1.0], units=5), "plan has units 5 instead of 1000"),
        (run_of([1.0], [1.0], clock="time.perf_counter"), "clock time.perf_counter instead of time.process_time"),
    ],
)
def test_run_that_cannot_be_judged_is_refused_with_the_reason(files: Files, run: Any, message: str) -> None:
    files.gate(run_of([2.0], [1.0]), write=True)
    assert files.gate(run) == ratio_gate.UNUSABLE
    assert message in files.error


@pytest.mark.parametrize("limits", [None, '{"limits": {"plan": {"limit": 2}}}', "{"])
def test_missing_or_damaged_limits_are_named_with_the_command_that_makes_them(files: Files, limits: str | None) -> None:
    if limits is not None:
        files.limits.write_text(limits)
    assert files.gate(run_of([2.0], [1.0])) == ratio_gate.UNUSABLE
    assert str(files.limits) in files.error
    assert "--write" in files.error
    assert ratio_gate.main([str(files.folder / "none.json")]) == ratio_gate.UNUSABLE


def test_committed_run_is_within_the_committed_limits() -> None:
    (run,) = COMMITTED.glob("benchmark_*.json")
    assert ratio_gate.main([str(run)]) == 0


def test_committed_limits_follow_from_the_ratios_beside_them() -> None:
    for name, limit in ratio_gate.read(ratio_gate.Limits, ratio_gate.LIMITS, remedy="").limits.items():
        assert len(limit.seen) >= 3, name
        assert limit.limit == pytest.approx(max(limit.seen) * ratio_gate.HEADROOM, abs=1e-3), name


def test_committed_run_has_the_benchmarks_that_there_are() -> None:
    modules = (PROJECT / "tests" / "bench").glob("test_*.py")
    functions = {
        node.name
        for module in modules
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef) and "turns" in {argument.arg for argument in node.args.args}
    }
    collect = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "tests/bench"]
    shown = subprocess.run(collect, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=120).stdout
    collected = {line.rpartition("::")[2] for line in shown.splitlines() if "::" in line}
    there_are = {name for name in collected if name.partition("[")[0] in functions}
    (run,) = COMMITTED.glob("benchmark_*.json")
    benchmarks = json.loads(run.read_text())["benchmarks"]
    measured = {one["name"] for one in benchmarks}
    assert there_are - measured == UNSUPPORTED
    other_sides = {one["extra_info"]["beside"]["name"] for one in benchmarks if "beside" in one["extra_info"]}
    assert measured - other_sides <= there_are
