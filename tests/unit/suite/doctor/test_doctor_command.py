"""The whole: every check together, what is shown, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from fabricated_machine import QUIET, healthy, no_permission, nvml, says_nothing, with_gpu, write
from rich.console import Console
from typer.testing import CliRunner

from suite.doctor import command
from suite.doctor.examine import CHECKS, GPU_CHECKS, examine
from suite.doctor.finding import Answer, Finding, Level, Unsaid, ok
from suite.doctor.gpu_probe import Gpu
from suite.doctor.machine import cpu_list, cpu_words, this_machine
from suite.doctor.sample import Busy
from suite.doctor.shown import show, to_json

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def machine(tmp_path):
    return healthy(tmp_path)


def spoilt(machine):
    """One problem, one warning, three unknown."""
    top = (Busy("a_process_with_a_rather_long_name", 123456, 3.9), Busy("another", 654321, 1.1))
    write(machine.root, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    for cpu in range(4):
        for name in ("scaling_governor", "scaling_cur_freq"):
            (machine.root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}").unlink()
    (machine.root / "sys/devices/system/cpu/intel_pstate/no_turbo").unlink()
    return replace(machine, sample=lambda: replace(QUIET, others_s=5.0, top=top))


def call(monkeypatch, machine, *words, columns=80):
    monkeypatch.setattr(command, "this_machine", lambda *, seconds: machine)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.doctor_command)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": str(columns)})


def test_healthy_machine_is_well_in_every_respect(machine):
    findings = examine(machine)
    assert {finding.name: finding.level for finding in findings} == dict.fromkeys(CHECKS, Level.OK)
    assert [finding.name for finding in findings if finding.remedy] == ["GPU"]


def test_machine_whose_every_probe_fails_is_unknown_in_every_respect(tmp_path):
    findings = examine(says_nothing(tmp_path))
    known = [finding for finding in findings if finding.level is not Level.UNKNOWN]
    # what is not set in the environment is known
    assert {finding.name for finding in known} == {"thread waiting", "variables"}
    assert all(finding.seen for finding in findings)


def test_driver_that_refuses_everything_is_unknown_in_every_respect(machine):
    calls = dict.fromkeys((name for name in vars(nvml()) if name.startswith("nvmlDevice")), no_permission)
    write(machine.root, "sys/devices/system/node/online", "0-1\n")
    write(machine.root, "sys/devices/system/node/node1/cpulist", "4-7\n")
    findings = {finding.name: finding for finding in examine(replace(machine, gpu=lambda: Gpu(nvml(**calls), "gpu")))}
    for name in ("GPU", *GPU_CHECKS):
        assert findings[name].level is Level.UNKNOWN
        assert "Insufficient Permissions" in findings[name].seen


def test_gpu_that_cannot_be_asked_is_unknown_and_the_rest_is_told(machine):
    def fails():
        raise Unsaid("an NVIDIA driver is loaded but does not answer")

    findings = {finding.name: finding for finding in examine(replace(machine, gpu=fails))}
    assert findings["GPU"].level is Level.UNKNOWN
    assert findings["GPU"].seen == "an NVIDIA driver is loaded but does not answer"
    assert findings["swap"].level is Level.OK
    assert not findings.keys() & GPU_CHECKS.keys()


def test_check_that_fails_unforeseen_is_unknown_and_the_rest_is_told(machine):
    def breaks():
        raise ZeroDivisionError("of all things")

    findings = {finding.name: finding for finding in examine(replace(machine, load_average=breaks))}
    assert findings["load average"].level is Level.UNKNOWN
    assert findings["load average"].seen == "the check failed with ZeroDivisionError: of all things"
    assert findings["swap"].level is Level.OK


def test_findings_come_worst_first(machine):
    levels = [finding.level for finding in examine(spoilt(machine))]
    assert levels == sorted(levels, key=list(Level).index)
    assert [levels.count(level) for level in Level] == [1, 1, 3, len(CHECKS) - 5]


def test_what_needs_something_done_says_what():
    for level in (Level.PROBLEM, Level.WARNING):
        with pytest.raises(ValueError, match="needs a remedy"):
            Answer(level, "something is wrong")
    assert ok("fine").remedy == ""


# what is shown


def test_blocks_have_seen_and_remedy_and_fit_80_columns(machine, monkeypatch):
    result = call(monkeypatch, spoilt(machine), columns=200)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "problem: other processes"
    assert "a_process_with_a_rather_long_name (pid 123456, 195% of one)" in " ".join(result.stdout.split())
    assert "  -> Stop them" in result.stdout
    assert "warning: huge pages" in lines
    assert "unknown: governor, turbo, clock" in lines
    assert "note: GPU" in lines
    assert "ok: stolen time, load average, virtual machine" in result.stdout
    assert lines[-1] == f"1 problem, 1 warning, 3 unknown, {len(CHECKS) - 5} ok"
    assert "\x1b" not in result.stdout


def test_narrow_terminals_get_narrow_lines(machine, monkeypatch):
    result = call(monkeypatch, spoilt(machine), columns=50)
    assert max(map(len, result.stdout.splitlines())) <= 50


def test_colour_is_for_terminals_only(machine, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    findings = examine(spoilt(machine))
    for terminal in (True, False):
        console = Console(force_terminal=terminal, width=80, markup=False, highlight=False)
        with console.capture() as captured:
            show(findings, console)
        assert ("\x1b[" in captured.get()) == terminal


def test_healthy_machine_takes_a_few_lines(machine, monkeypatch):
    result = call(monkeypatch, machine)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) < 14
    assert f"0 problems, 0 warnings, 0 unknown, {len(CHECKS)} ok" in result.stdout


def test_json_holds_every_finding_worst_first(machine, monkeypatch):
    machine = with_gpu(spoilt(machine))
    record = json.loads(call(monkeypatch, machine, "--json").stdout)
    assert record["worst"] == "problem"
    assert {finding["name"] for finding in record["findings"]} == {*CHECKS, *GPU_CHECKS}
    assert all(set(finding) == {"name", "level", "seen", "remedy"} for finding in record["findings"])
    assert record["findings"][0]["name"] == "other processes"


def test_json_keeps_letters_of_every_language():
    assert "Füße" in to_json([Finding("disk", Level.OK, "Füße", "")])


# exit codes


def test_exit_code_is_1_for_a_problem_and_with_strict_for_a_warning(machine, monkeypatch):
    warned = replace(machine, load_average=lambda: 9.0)
    assert call(monkeypatch, warned).exit_code == 0
    assert call(monkeypatch, warned, "--strict").exit_code == 1
    assert call(monkeypatch, machine, "--strict").exit_code == 0
    assert call(monkeypatch, spoilt(machine)).exit_code == 1


def test_unknown_is_no_failure_even_with_strict(tmp_path, monkeypatch):
    assert call(monkeypatch, says_nothing(tmp_path), "--strict").exit_code == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan"])
def test_seconds_out_of_range_are_refused(monkeypatch, machine, seconds):
    result = call(monkeypatch, machine, "--seconds", seconds)
    assert result.exit_code == 2
    assert "--seconds" in result.stderr
    assert result.stdout == ""


def test_ctrl_c_ends_with_130(machine, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    result = call(monkeypatch, replace(machine, sample=interrupted))
    assert result.exit_code == 130
    assert "not finished" in result.stderr
    assert result.stdout == ""


# sets of CPUs


@pytest.mark.parametrize(("text", "cpus"), [("0", {0}), ("0-2,5", {0, 1, 2, 5}), ("", set()), ("3,1", {1, 3})])
def test_lists_of_cpus_are_read(text, cpus):
    assert cpu_list(text) == cpus


def test_lists_of_cpus_are_written_as_taskset_takes_them():
    assert cpu_words(frozenset({5, 0, 1, 2, 8, 9})) == "0-2,5,8-9"
    with pytest.raises(Unsaid, match="no list of CPUs"):
        cpu_list("a-b")


# this machine


def test_real_machine_is_examined_without_a_traceback():
    findings = examine(this_machine(seconds=0.2))
    assert {*CHECKS} <= {finding.name for finding in findings}
    assert not [finding for finding in findings if "the check failed" in finding.seen]


def test_command_runs_for_real():
    done = subprocess.run(
        [sys.executable, "-m", "suite", "doctor", "--json", "--seconds", "0.2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    assert {*CHECKS} <= {finding["name"] for finding in record["findings"]}
    assert (done.returncode == 1) == (record["worst"] == "problem")
    assert done.stderr == ""
