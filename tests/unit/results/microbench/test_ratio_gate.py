"""The gate judges ratios as it says and refuses what it cannot judge; committed limits are up to date."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ratio_gate

PROJECT = Path(__file__).resolve().parents[4]
COMMITTED = PROJECT / "results" / "microbench" / "benchmark_cpu.json"
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


Gate = Callable[..., tuple[int, str]]


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """The gate called on runs with `limits.json` in a directory: its exit code, and what it said."""

    def call(*runs: Any, write: bool = False) -> tuple[int, str]:
        paths = [tmp_path / f"run{number}.json" for number, _ in enumerate(runs)]
        for path, run in zip(paths, runs, strict=True):
            path.write_text(run if isinstance(run, str) else json.dumps(run))
        limits = ["--limits", str(tmp_path / "limits.json"), *(["--write"] if write else [])]
        code = ratio_gate.main([*map(str, paths), *limits])
        return code, "".join(capsys.readouterr())

    return call


def test_limit_is_the_worst_ratio_seen_with_headroom_and_names_what_was_seen(gate: Gate, tmp_path: Path) -> None:
    assert gate(run_of([2.0], [1.0]), run_of([3.0], [1.0]), write=True)[0] == 0
    limit = json.loads((tmp_path / "limits.json").read_text())["limits"]["plan"]
    assert (limit["limit"], limit["seen"]) == (3.0 * ratio_gate.HEADROOM, [2.0, 3.0])
    assert (limit["beside"], limit["units"], limit["threads"]) == ("gather", 1_000, 1)


@pytest.mark.parametrize(("own", "beside", "code"), [(2.5, 1.0, 0), (25.0, 10.0, 0), (2.51, 1.0, ratio_gate.BEYOND)])
def test_exit_code_turns_one_just_beyond_the_limit_however_slow_the_machine_is(
    gate: Gate, own: float, beside: float, code: int
) -> None:
    gate(run_of([2.0], [1.0]), write=True)
    found, said = gate(run_of([own], [beside]))
    assert found == code
    assert ("BEYOND" in said) == ("beyond the limit: plan" in said) == bool(code)


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
def test_run_that_cannot_be_judged_is_refused_with_the_reason(gate: Gate, run: Any, message: str) -> None:
    gate(run_of([2.0], [1.0]), write=True)
    code, said = gate(run)
    assert code == ratio_gate.UNUSABLE
    assert message in said


@pytest.mark.parametrize("limits", [None, '{"limits": {"plan": {"limit": 2}}}', "{"])
def test_missing_or_damaged_limits_are_named_with_the_command_that_makes_them(
    gate: Gate, tmp_path: Path, limits: str | None
) -> None:
    if limits is not None:
        (tmp_path / "limits.json").write_text(limits)
    code, said = gate(run_of([2.0], [1.0]))
    assert code == ratio_gate.UNUSABLE
    assert str(tmp_path / "limits.json") in said and "--write" in said


def test_committed_run_is_within_the_committed_limits() -> None:
    assert ratio_gate.main([str(COMMITTED)]) == 0


def test_committed_limits_follow_from_the_ratios_beside_them() -> None:
    for name, limit in ratio_gate.read(ratio_gate.Limits, ratio_gate.LIMITS, remedy="").limits.items():
        assert len(limit.seen) >= 3, name
        assert limit.limit == pytest.approx(max(limit.seen) * ratio_gate.HEADROOM, abs=1e-3), name


def test_committed_run_has_the_benchmarks_that_there_are() -> None:
    sources = "".join(module.read_text() for module in (PROJECT / "tests" / "bench").glob("test_*.py"))
    functions = set(re.findall(r"^def (test_\w+)\([^)]*\bturns: ", sources, re.MULTILINE))
    collect = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "tests/bench"]
    shown = subprocess.run(collect, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=120).stdout
    collected = {line.rpartition("::")[2] for line in shown.splitlines() if "::" in line}
    there_are = {name for name in collected if name.partition("[")[0] in functions}
    benchmarks = json.loads(COMMITTED.read_text())["benchmarks"]
    measured = {one["name"] for one in benchmarks}
    assert there_are - measured == UNSUPPORTED
    other_sides = {one["extra_info"]["beside"]["name"] for one in benchmarks if "beside" in one["extra_info"]}
    assert measured - other_sides <= there_are
