"""The help of every command: it fits a terminal of 80 columns, cuts no word, and its examples are commands."""

import re
import shlex

import pytest
import typer
from typer.core import TyperCommand
from typer.testing import CliRunner

from suite.__main__ import COMMANDS
from suite.__main__ import app as suite
from suite.run.console.command import app as bench
from workloads.__main__ import app as workloads

BENCH = "python run_bench.py"
GROUPS = {"python -m suite": suite, "python -m workloads": workloads}
NAMES = [
    BENCH,
    *(f"python -m suite {name}" for name in COMMANDS),
    *(f"python -m workloads {name}" for name in ("prepare", "verify", "describe")),
]


def command_of(name: str) -> TyperCommand:
    """What a command line calls."""
    if name == BENCH:
        return typer.main.get_command(bench)
    called, _, last = name.rpartition(" ")
    group = typer.main.get_command(GROUPS[called])
    return group.resolve_command(typer.Context(group), [last])[1]


def shown(name: str) -> str:
    """The help as a terminal of 80 columns shows it."""
    app, words = (bench, []) if name == BENCH else (GROUPS[" ".join(name.split()[:3])], name.split()[3:])
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def examples_of(name: str) -> list[str]:
    """Commands in the help's text that begin with the command's own name."""
    text = " ".join((command_of(name).help or "").split())
    return [code for code in re.findall(r"`([^`]+)`", text) if code.startswith(f"{name} ")]


@pytest.mark.parametrize("name", [*GROUPS, *NAMES])
def test_help_fits_80_columns_and_cuts_no_word(name: str) -> None:
    assert [line for line in shown(name).splitlines() if len(line) > 80 or "…" in line] == []


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example_that_parses(name: str) -> None:
    examples = examples_of(name)
    assert examples, f"{name} --help shows no `{name} ...`: put an example into the command's docstring"
    for example in examples:
        command_of(name).make_context(name, shlex.split(example.removeprefix(name)))  # a wrong option raises
