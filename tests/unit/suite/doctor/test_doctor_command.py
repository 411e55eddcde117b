"""The command line: what it prints, and its exit codes."""

from dataclasses import replace

import pytest
import typer
from fabricated_machine import healthy
from typer.testing import CliRunner

from suite.doctor import command
from suite.doctor.examine import CHECKS
from suite.doctor.machine import Sample


@pytest.fixture
def read(tmp_path, monkeypatch):
    """A healthy machine, and the facts that its checks read."""
    return healthy(tmp_path, monkeypatch)


@pytest.fixture
def machine(read):
    return read[0]


def call(monkeypatch, machine, *words, columns=80):
    monkeypatch.setattr(command, "this_machine", lambda *, seconds: machine)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.doctor_command)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": str(columns)})


@pytest.mark.parametrize(("columns", "widest"), [(200, 80), (50, 50)])
def test_blocks_come_worst_first_with_a_remedy_and_fit_the_terminal(read, monkeypatch, columns, widest):
    machine, facts = read
    facts.swapped_bytes = 10**9
    spoilt = replace(machine, sample=Sample(0.9, 0.0, ("a_process (pid 12)",)))
    result = call(monkeypatch, spoilt, columns=columns)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= widest
    assert [line for line in lines if line.startswith(("problem:", "warning:", "unknown:", "note:"))][:3] == [
        "problem: other processes",
        "warning: swap",
        "note: GPU",
    ]
    assert "most of all a_process (pid 12) -> Stop them" in " ".join(result.stdout.split())
    assert "ok: stolen time, clock, CPU quota" in result.stdout
    assert lines[-1] == f"problem: 1, warning: 1, unknown: 0, ok: {len(CHECKS) - 2}"


def test_exit_code_is_1_for_a_problem_and_with_strict_for_a_warning(read, monkeypatch):
    machine, facts = read
    assert call(monkeypatch, machine, "--strict").exit_code == 0
    unknown = replace(machine, root=machine.root / "absent")
    assert call(monkeypatch, unknown, "--strict").exit_code == 0
    facts.swapped_bytes = 10**9
    assert call(monkeypatch, machine).exit_code == 0
    assert call(monkeypatch, machine, "--strict").exit_code == 1
    facts.available_host_bytes = 1
    assert call(monkeypatch, machine).exit_code == 1


@pytest.mark.parametrize("seconds", ["0", "61", "nan"])
def test_seconds_out_of_range_are_refused(monkeypatch, machine, seconds):
    result = call(monkeypatch, machine, "--seconds", seconds)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--seconds" in result.stderr


def test_ctrl_c_ends_with_130(machine, monkeypatch):
    def interrupted(machine):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "examine", interrupted)
    result = call(monkeypatch, machine)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "not finished" in result.stderr
