"""Command line: `python -m suite doctor`."""

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from suite.doctor.checks import Finding, Level, examine
from suite.records.exits import errors_told
from suite.records.options import BadOption
from suite.records.shown import ShownConsole

_LONGEST_S = 60.0
_WIDTH = 80
_STYLES = {Level.PROBLEM: "bold red", Level.WARNING: "yellow", Level.UNKNOWN: "cyan", Level.OK: "green"}


def doctor_command(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make the exit code 1 as well")] = False,
    seconds: Annotated[float, typer.Option(help="How long others' use of the CPUs is watched")] = 2.0,
) -> None:
    """What on this machine would spoil a benchmark, each finding with a remedy.

    Looks at load, governor, CPU quota, room in memory and on disk, packages, the GPU's link and who uses the GPU. It
    only reads: nothing is changed. What the machine does not say is `unknown`, with the reason.

    For example: `python -m suite doctor --strict --seconds 10`.

    The exit code is 0 unless there is a problem (1; with --strict a warning, too), 2 for a wrong option, 130 after
    Ctrl-C.
    """
    with errors_told(left="the checks were not finished") as errors:
        if not 0 < seconds <= _LONGEST_S:  # NaN compares false with everything
            raise BadOption(f"--seconds: {seconds:g} is out of range, give 0.1 to {_LONGEST_S:g}")
        with errors.status("watching what else computes"):
            findings = examine(seconds=seconds)
    show(findings, ShownConsole(markup=False, highlight=False))
    bad = {Level.PROBLEM, Level.WARNING} if strict else {Level.PROBLEM}
    raise typer.Exit(int(any(finding.level in bad for finding in findings.values())))


def show(findings: Mapping[str, Finding], console: Console) -> None:
    """One block for each finding, by the name of its check; what is well and needs no words, as a list of names."""
    width = min(console.width, _WIDTH)
    quiet = [name for name, finding in findings.items() if finding.level is Level.OK and not finding.remedy]
    for name, finding in findings.items():
        if name in quiet:
            continue
        title = "note" if finding.level is Level.OK else str(finding.level)
        console.print(Text.assemble((f"{title}: ", _STYLES[finding.level]), (name, "bold")))
        for line in (finding.seen, finding.remedy and f"-> {finding.remedy}"):
            if line:
                console.print(Text(_wrapped(f"  {line}", width, then="  ")))
        console.print()
    if quiet:
        console.print(Text(_wrapped("ok: " + ", ".join(quiet), width, then="    ")) + "\n")
    counts = Counter(finding.level for finding in findings.values())
    console.print(", ".join(f"{level}: {counts[level]}" for level in Level))


def _wrapped(text: str, width: int, *, then: str) -> str:
    # an option torn at a hyphen could not be copied
    return textwrap.fill(text, width, subsequent_indent=then, break_on_hyphens=False)
