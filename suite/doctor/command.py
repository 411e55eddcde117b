"""Command line: `python -m suite doctor`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer
from rich.console import Console

from suite.doctor.examine import examine
from suite.doctor.finding import Finding, Level
from suite.doctor.machine import this_machine
from suite.doctor.shown import show, to_json

_USAGE = 2
_INTERRUPTED = 130
_LONGEST_S = 60.0


def doctor_command(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make the exit code 1 as well")] = False,
    seconds: Annotated[float, typer.Option(help="How long others' use of the CPUs is watched")] = 2.0,
) -> None:
    """What on this machine would spoil a benchmark, each finding with a remedy.

    Looks at processes, clocks, cores, memory, disks, NUMA, the GPU and its link, packages and the environment. It only
    reads: nothing is changed. What the machine does not say is `unknown`, with the reason.

    For example: `python -m suite doctor --strict`; `python -m suite doctor --json --seconds 10`.

    The exit code is 0 unless there is a problem (1; with --strict a warning, too), 2 for a wrong option, 130 after
    Ctrl-C.
    """
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    if not 0 < seconds <= _LONGEST_S:  # NaN compares false with everything
        errors.print(f"error: --seconds: {seconds:g} is out of range, give 0.1 to {_LONGEST_S:g}", style="red")
        raise typer.Exit(_USAGE)
    try:
        findings = _examined(seconds, errors)
    except KeyboardInterrupt:
        errors.print("interrupted: the checks were not finished", style="yellow")
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        typer.echo(to_json(findings), nl=False)
    else:
        show(findings, Console(markup=False, highlight=False))
    raise typer.Exit(exit_code(findings, strict=strict))


def exit_code(findings: list[Finding], *, strict: bool) -> int:
    """1 with a problem; with `strict` with a warning as well."""
    bad = {Level.PROBLEM, Level.WARNING} if strict else {Level.PROBLEM}
    return int(any(finding.level in bad for finding in findings))


def _examined(seconds: float, errors: Console) -> list[Finding]:
    """In a terminal it says what it does meanwhile."""
    machine = this_machine(seconds=seconds)
    said = {
        "other processes": f"watching what else computes, for {seconds:g} s",
        "threads": "importing torch and the other packages",
    }
    with errors.status("") if errors.is_terminal else nullcontext() as status:

        def on_check(name: str) -> None:
            if status is not None:
                status.update(said.get(name, f"checking {name}"))

        return examine(machine, on_check)
