"""Findings for people and for programs."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from suite.doctor.finding import Finding, Level

_WIDTH = 80
_STYLES = {Level.PROBLEM: "bold red", Level.WARNING: "yellow", Level.UNKNOWN: "cyan", Level.OK: "green"}


def show(findings: Sequence[Finding], console: Console) -> None:
    """One block each, worst first, with alike ones together; what is well and needs no words, as a list of names.

    Args:
        findings: Worst first.
        console: No line is wider than it, or than 80 columns.
    """
    width = min(console.width, _WIDTH)
    quiet = [finding for finding in findings if finding.level is Level.OK and not finding.remedy]
    alike: dict[tuple[Level, str, str], list[str]] = {}
    for finding in findings:
        if finding not in quiet:
            alike.setdefault((finding.level, finding.seen, finding.remedy), []).append(finding.name)
    for (level, seen, remedy), names in alike.items():
        title = "note" if level is Level.OK else str(level)
        console.print(Text.assemble((f"{title}: ", _STYLES[level]), (", ".join(names), "bold")))
        for line in (seen, remedy and f"-> {remedy}"):
            if line:
                console.print(Text(_wrapped(line, width, first="  ", then="  ")))
        console.print()
    if quiet:
        line = "ok: " + ", ".join(finding.name for finding in quiet)
        console.print(Text(_wrapped(line, width, then="    ")))
        console.print()
    console.print(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """How many of each level."""
    counts = Counter(finding.level for finding in findings)
    words = {
        Level.PROBLEM: ("problem", "problems"),
        Level.WARNING: ("warning", "warnings"),
        Level.UNKNOWN: ("unknown", "unknown"),
        Level.OK: ("ok", "ok"),
    }
    return ", ".join(f"{counts[level]} {words[level][counts[level] != 1]}" for level in Level)


def to_json(findings: Sequence[Finding]) -> str:
    """`{"worst": ..., "findings": [{"name", "level", "seen", "remedy"}, ...]}`, worst first."""
    record = {"worst": findings[0].level, "findings": [asdict(finding) for finding in findings]}
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def _wrapped(text: str, width: int, *, first: str = "", then: str) -> str:
    # an option torn at a hyphen could not be copied
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False)
