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


def benchmark(
    name: str, seconds: list[float], *, role: str = "ours", units: int = 1_000, **info: Any
) -> dict[str, Any]:
    work = {"unit": "ids", "units": units, "threads": 1, "device": "cpu", "clock": "time.process_time"}
    extra_info = {"role": role, **work, "load_average": 0.5}
    environment = {"machine": "m1", "cpu": "EPYC", "cores": 2, "gpu": None, "code": "c0de"}
    return {
        "name": name,
        "stats": {"data": seconds},
        "extra_info": {**extra_info, "environment": environment, **info},
    }


def run_of(own: list[Any], beside: list[float], **info: Any) -> dict[str, Any]:
    """A benchmark of ours beside a gather."""
    plan = benchmark("plan", own, beside={"name": "gather", "seconds": beside}, **info)
    gather = benchmark("gather", [9.0], role="bound", units=plan["extra_info"]["units"])
    return {"datetime": "2026-11-01T12:00:00+00:00", "benchmarks": [plan, gather]}


class Files:
    """Runs and limits in a directory, and the gate called on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.limits = folder / "limits.json"
        self._capsys = capsys
        self.out = self.error = ""

    def write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def gate(self, *runs: Any, write: bool = False) -> int:
        paths = [str(self.write(f"run{number}.json", run)) for number, run in enumerate(runs)]
        code = ratio_gate.main([*paths, "--limits", str(self.limits), *(["--write"] if write else [])])
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


def test_a_machine_ten_times_slower_passes(files: Files) -> None:
    files.gate(run_of([2.0], [1.0]), write=True)
    assert files.gate(run_of([20.0], [10.0])) == 0
    assert "within" in files.out


@pytest.mark.parametrize(("own", "code"), [(2.5, 0), (2.51, ratio_gate.BEYOND)])
def test_exit_code_turns_one_just_beyond_the_limit(files: Files, own: float, code: int) -> None:
    files.gate(run_of([2.0], [1.0]), write=True)
    assert files.gate(run_of([own], [1.0])) == code
    assert ("BEYOND" in files.out) == ("beyond the limit: plan" in files.error) == bool(code)


def without(run: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A run whose first benchmark lacks the field that keys lead to."""
    entry = run["benchmarks"][0]
    for key in keys[:-1]:
        entry = entry[key]
    del entry[keys[-1]]
    return run


BAD_RUNS = {
    "cut short": ('{"benchmarks": [', "Invalid JSON"),
    "nothing measured": ({"datetime": "", "benchmarks": []}, "benchmarks: List should have at least 1 item"),
    "nothing of ours": (
        {"datetime": "", "benchmarks": [benchmark("gather", [1.0], role="bound")]},
        "no benchmark has the role 'ours'",
    ),
    "other side not in the run": (
        {"datetime": "", "benchmarks": run_of([1.0], [1.0])["benchmarks"][:1]},
        "plan is measured beside gather, which is not in the run",
    ),
    "other side is ours too": (
        {
            "datetime": "",
            "benchmarks": [
                run_of([1.0], [1.0])["benchmarks"][0],
                benchmark("gather", [1.0], beside={"name": "plan", "seconds": [1.0]}),
            ],
        },
        "which is neither a peer nor a bound",
    ),
    "no other side": (without(run_of([1.0], [1.0]), "extra_info", "beside"), "plan has no other side"),
    "no raw rounds": (without(run_of([1.0], [1.0]), "stats", "data"), "stats.data: Field required"),
    "rounds lost": (run_of([1.0, 1.0], [1.0]), "plan has 2 rounds and gather beside it 1"),
    "no time at all": (run_of([0.0], [1.0]), "greater than 0"),
    "twice": ({"datetime": "", "benchmarks": run_of([1.0], [1.0])["benchmarks"] * 2}, "two benchmarks have one name"),
    "less work beside": (
        {
            "datetime": "",
            "benchmarks": [run_of([1.0], [1.0])["benchmarks"][0], benchmark("gather", [1.0], role="peer", units=7)],
        },
        "plan works on 1000, gather on 7",
    ),
}


@pytest.mark.parametrize("what", BAD_RUNS)
def test_run_that_cannot_be_judged_is_refused_by_name(files: Files, what: str) -> None:
    content, message = BAD_RUNS[what]
    files.gate(run_of([2.0], [1.0]), write=True)
    assert files.gate(content) == ratio_gate.UNUSABLE
    assert message in files.error
    assert "run0.json" in files.error


def test_missing_files_are_named_with_the_command_that_makes_them(files: Files) -> None:
    assert files.gate(run_of([2.0], [1.0])) == ratio_gate.UNUSABLE
    assert f"{files.limits} cannot be read" in files.error
    assert f"--limits {files.limits} --write" in files.error
    assert ratio_gate.main([str(files.folder / "none.json")]) == ratio_gate.UNUSABLE


def with_second(run: dict[str, Any]) -> dict[str, Any]:
    second = benchmark("step", [1.0], beside={"name": "gather", "seconds": [1.0]})
    return {**run, "benchmarks": [*run["benchmarks"], second]}


def test_benchmark_without_limit_and_limit_without_benchmark_are_errors(files: Files) -> None:
    one, two = run_of([2.0], [1.0]), with_second(run_of([2.0], [1.0]))
    files.gate(one, write=True)
    assert files.gate(two) == ratio_gate.UNUSABLE
    assert "step has no limit" in files.error
    assert "--write" in files.error
    files.gate(two, write=True)
    assert files.gate(one) == ratio_gate.UNUSABLE
    assert "the limit of step is of no benchmark" in files.error


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"units": 5}, "units 5 instead of 1000"),
        ({"clock": "time.perf_counter"}, "clock time.perf_counter instead of time.process_time"),
    ],
)
def test_limit_of_other_work_judges_nothing(files: Files, changed: dict[str, Any], message: str) -> None:
    files.gate(run_of([2.0], [1.0]), write=True)
    assert files.gate(run_of([2.0], [1.0], **changed)) == ratio_gate.UNUSABLE
    assert message in files.error


def test_limits_are_not_made_from_runs_of_different_benchmarks(files: Files) -> None:
    one = run_of([2.0], [1.0])
    assert files.gate(one, with_second(one), write=True) == ratio_gate.UNUSABLE
    assert "run 2 and run 1 differ in step" in files.error
    assert files.gate(one, run_of([2.0], [1.0], threads=2), write=True) == ratio_gate.UNUSABLE
    assert "differ in plan" in files.error
    assert not files.limits.exists()


@pytest.mark.parametrize("limits", ['{"limits": {"plan": {"limit": 2}}}', "{"])
def test_damaged_limits_are_refused(files: Files, limits: str) -> None:
    files.limits.write_text(limits)
    assert files.gate(run_of([2.0], [1.0])) == ratio_gate.UNUSABLE
    assert str(files.limits) in files.error


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
    measured = {benchmark["name"] for benchmark in json.loads(run.read_text())["benchmarks"]}
    assert there_are - measured == UNSUPPORTED
    assert measured <= there_are
