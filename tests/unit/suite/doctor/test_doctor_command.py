"""The command line: what it prints, and its exit codes."""

import pytest
from typer.testing import CliRunner

from suite import doctor
from suite.__main__ import app
from suite.doctor import ok, problem, unknown, warning

WELL = {"load": ok("others take 1%"), "governor": ok("governor performance")}


def call(monkeypatch, findings, *words):
    def examine(*, seconds):
        if findings is None:
            raise KeyboardInterrupt
        return findings

    monkeypatch.setattr(doctor, "examine", examine)
    return CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "50"})


def test_blocks_have_a_remedy_and_fit_the_terminal(monkeypatch):
    spoilt = problem("the container may use 1.0 CPUs but sees 4 " * 3, "Give it CPUs instead of a quota.")
    result = call(monkeypatch, {"CPU quota": spoilt, **WELL})
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 50
    assert lines[0] == "problem: CPU quota"
    assert "sees 4 -> Give it CPUs" in " ".join(result.stdout.split())
    assert "ok: load, governor" in result.stdout
    assert lines[-1] == "problem: 1, warning: 0, unknown: 0, ok: 2"


@pytest.mark.parametrize(
    ("finding", "plain", "strict"), [(unknown("no"), 0, 0), (warning("so", "do"), 0, 1), (problem("so", "do"), 1, 1)]
)
def test_exit_code_is_1_for_a_problem_and_with_strict_for_a_warning(monkeypatch, finding, plain, strict):
    assert call(monkeypatch, WELL | {"GPU link": finding}).exit_code == plain
    assert call(monkeypatch, WELL | {"GPU link": finding}, "--strict").exit_code == strict


def test_ctrl_c_ends_with_130(monkeypatch):
    result = call(monkeypatch, None)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "not finished" in result.stderr
