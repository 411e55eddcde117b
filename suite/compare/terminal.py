"""A comparison for people: within 80 columns, in a terminal, a pipe or the log of a CI job."""

import math
from collections.abc import Sequence

from rich.console import Console

from suite.compare.changes import Kind
from suite.compare.compare import Compared, Comparison
from suite.compare.gate import FAILED, PASSED, Verdict
from suite.compare.runs import Run
from suite.compare.speeds import Unjudged
from suite.tables.quantities import MISSING, amount
from suite.tables.statistics import Estimate
from suite.tables.terminal import print_line, print_table

_LEGEND = (
    "Speeds are relative to the baseline that took turns with the system in the same run: what slows both, the machine "
    "or code that they share, cancels. B / A: geometric means over builds; Welch's 95 % interval, which knows the "
    "spread inside each run only. Beyond noise: it excludes 1, which chance alone does to about 1 cell in 20."
)
_BASELINE = "The baseline itself (the runs did not take turns with each other: a busy machine looks like slower code)"
_LISTED = 12
"""Cells named in one line before the rest is counted."""


def show(comparison: Comparison, verdict: Verdict | None, console: Console, *, everything: bool) -> None:
    """Print a comparison, and the gate's verdict if there was one; with `everything` cells without a change, too."""
    _show_runs(comparison, console)
    _show_speeds(comparison, console)
    for kind in Kind:
        changed = comparison.changed(kind)
        if changed:
            _heading(console, kind.value)
        for label, change in changed:
            print_line(console, f"{label}: {change.text}", indent=2)
    _show_the_rest(comparison, console, everything=everything)
    console.line()
    print_line(console, _LEGEND, style="dim")
    if verdict is not None:
        _show_verdict(verdict, console, everything=everything)


def _show_runs(comparison: Comparison, console: Console) -> None:
    for run in (comparison.before, comparison.after):
        print_line(console, f"{run.name}: {run.path}, {_counted(run)}", style="bold")
    if not comparison.differences:
        print_line(console, "Machine, packages and code are the same.")
    for difference in comparison.differences:
        print_line(console, f"{difference}", indent=2)
    for warning in comparison.warnings:
        print_line(console, warning, style="yellow")


def _counted(run: Run) -> str:
    started = sorted(record.started_at[:10] for row in run.rows for record in row.records)
    first, last = started[0], started[-1]
    return f"{_count(len(started), 'record')} of {first}{f' to {last}' if last != first else ''}"


def _show_speeds(comparison: Comparison, console: Console) -> None:
    changed = comparison.beyond_noise
    slower = sum(cell.slower for cell in changed)
    if changed:
        _heading(console, f"Relative speed, beyond noise: {slower} slower, {len(changed) - slower} faster")
        _show_table(changed, console)
    else:
        _heading(console, "Relative speed: no change beyond noise")
    baselines = [cell for cell in comparison.cells if cell.unjudged is Unjudged.IS_THE_BASELINE]
    if baselines:
        _heading(console, _BASELINE)
    for cell in baselines:
        before, after = (row.steps_per_s or math.nan for row in cell.pair)
        change = 100 * (after / before - 1)
        print_line(console, f"{cell.label}: {amount(before)} -> {amount(after)} it/s ({change:+.0f} %)", indent=2)


def _show_table(cells: Sequence[Compared], console: Console) -> None:
    heads = ["cell", "RUN_A\nrelative", "RUN_B\nrelative", "B / A", "95 % interval", "builds"]
    lines = [
        [
            cell.label,
            *(amount(row.ratio) for row in cell.pair),
            *_estimate(cell.ratio),
            ", ".join(str(row.builds) for row in cell.pair),
        ]
        for cell in cells
    ]
    print_table(console, heads, lines)


def _estimate(ratio: Estimate | None) -> tuple[str, str]:
    """A ratio and its interval."""
    if ratio is None:
        return MISSING, "none"
    if ratio.low is None or ratio.high is None:
        return _ratio(ratio.value), "none"
    return _ratio(ratio.value), f"{_ratio(ratio.low)} to {_ratio(ratio.high)}"


def _ratio(value: float) -> str:
    """Three decimals, or as many as tell it from 0 and from 1."""
    if not 0.1 <= value < 10:
        return amount(value)
    return next((text for text in (f"{value:.{n}f}" for n in (3, 4, 5)) if float(text) != 1 or value == 1), "1.00000")


def _show_the_rest(comparison: Comparison, console: Console, *, everything: bool) -> None:
    console.line()
    quiet = [cell for cell in comparison.cells if cell.quiet]
    hint = "" if everything or not quiet else " (--all lists them)"
    print_line(console, f"No change beyond noise: {_count(len(quiet), 'cell')}{hint}")
    if everything and quiet:
        _show_table(quiet, console)
    untold = comparison.unjudged(Unjudged.SAME_RECORDS, Unjudged.NO_BASELINE, Unjudged.NO_INTERVAL)
    for reason, labels in untold.items():
        print_line(console, f"Speed not compared, {reason.reason}: {_names(labels, everything=everything)}")
    for name, cells in (("RUN_A", comparison.only_before), ("RUN_B", comparison.only_after)):
        if cells:
            print_line(console, f"Only in {name}: {_count(len(cells), 'cell')}")
        for label, row in cells:
            print_line(console, f"{label}: {row.status}", indent=2)


def _show_verdict(verdict: Verdict, console: Console, *, everything: bool) -> None:
    limit = f"--fail-if-slower {100 * verdict.threshold:g}%"
    console.line()
    for reason, labels in verdict.unjudged.items():
        print_line(console, f"Not judged, {reason.reason}: {_names(labels, everything=everything)}")
    if verdict.noisy:
        loss, names = f"{100 * verdict.threshold:g} %", _names(verdict.noisy, everything=everything)
        print_line(console, f"Too noisy to show a loss of {loss}, measure more rounds: {names}")
    if verdict.exit_code == FAILED:
        print_line(console, f"{limit}: failed, {_count(len(verdict.failures), 'reason')}", style="bold red")
        for failure in verdict.failures:
            print_line(console, failure, indent=2, style="red")
    elif verdict.exit_code == PASSED:
        noisy = f", {len(verdict.noisy)} of them too noisy" if verdict.noisy else ""
        print_line(console, f"{limit}: passed, {_count(verdict.judged, 'cell')} judged{noisy}", style="bold green")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _names(labels: Sequence[str], *, everything: bool) -> str:
    shown = labels if everything else labels[:_LISTED]
    more = len(labels) - len(shown)
    return "; ".join(shown) + (f"; and {more} more (--all lists them)" if more else "")


def _heading(console: Console, text: str) -> None:
    console.line()
    print_line(console, text, style="bold")
