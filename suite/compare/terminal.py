"""A comparison for people: within 80 columns, in a terminal, a pipe or the log of a CI job."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.compare.changes import Kind
from suite.compare.compare import Compared, Comparison, divisor_speeds
from suite.compare.gate import FAILED, PASSED, Verdict
from suite.compare.runs import Run
from suite.compare.speeds import Speed, Unjudged
from suite.tables.quantities import MISSING, amount
from suite.tables.terminal import print_line

_LEGEND = (
    "B / A: throughput of RUN_B relative to RUN_A's, geometric means over rounds; Welch's 95 % interval of the "
    "logarithms, which knows the spread inside each run only. Beyond noise: it excludes 1, which chance alone does to "
    "at most about 1 cell in 20."
)
_NORMALIZED = (
    "Throughput was divided by that of {system} in the same run and round: what slowed both alike, the machine or the "
    "code that they share, cancels."
)
_LISTED = 12
"""Cells named in one line before the rest is counted."""


def show(comparison: Comparison, verdict: Verdict | None, console: Console, *, everything: bool) -> None:
    """Print a comparison.

    Args:
        comparison: What to print.
        verdict: Of the gate; None: there was none.
        console: Where to.
        everything: List cells without a change, too.
    """
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
    if comparison.normalize_by is not None:
        print_line(console, _NORMALIZED.format(system=comparison.normalize_by), style="dim")
    if verdict is not None:
        _show_verdict(verdict, console, everything=everything)


def _show_runs(comparison: Comparison, console: Console) -> None:
    for run in (comparison.before, comparison.after):
        print_line(console, f"{run.name}: {run.path}, {_counted(run)}", style="bold")
    if not comparison.differences:
        print_line(console, "Machine, packages and code are the same.")
    where = ""
    for difference in comparison.differences:
        if difference.where != where:
            where = difference.where
            print_line(console, f"On {where}:")
        print_line(console, f"{difference}", indent=2)
    for warning in comparison.warnings:
        print_line(console, warning, style="yellow")


def _counted(run: Run) -> str:
    started = sorted(record.started_at for group in run.groups for record in group.records)
    first, last = started[0][:10], started[-1][:10]
    files = f"{len(started)} record{'s' if len(started) > 1 else ''}"
    return f"{files} of {first}{f' to {last}' if last != first else ''}"


def _show_speeds(comparison: Comparison, console: Console) -> None:
    changed = comparison.beyond_noise
    slower = sum(cell.speed.slower for cell in changed)
    what = "Speed" if comparison.normalize_by is None else f"Speed relative to {comparison.normalize_by}"
    if changed:
        _heading(console, f"{what}, beyond noise: {slower} slower, {len(changed) - slower} faster")
        _show_table(comparison, changed, console)
    else:
        _heading(console, f"{what}: no change beyond noise")
    if comparison.one_round:
        _heading(console, f"{what}, one round: no interval, so this may be noise")
        _show_table(comparison, comparison.one_round, console)
    for label, speed in divisor_speeds(comparison):
        ratio = MISSING if speed.ratio is None else f"{_ratio(speed.ratio.value)} [{_interval(speed)}]"
        print_line(console, f"{label}, not normalised: {ratio}")


def _show_table(comparison: Comparison, cells: Sequence[Compared], console: Console) -> None:
    unit = "samples/s" if comparison.normalize_by is None else "relative"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", overflow="fold")
    for header in (f"RUN_A\n{unit}", f"RUN_B\n{unit}", "B / A", "95 % interval", "rounds"):
        table.add_column(header, justify="right", no_wrap=True)
    for cell in cells:
        speed = cell.speed
        table.add_row(
            Text(cell.label),
            amount(speed.before),
            amount(speed.after),
            MISSING if speed.ratio is None else _ratio(speed.ratio.value),
            _interval(speed),
            f"{speed.rounds[0]}, {speed.rounds[1]}",
        )
    console.print(table, highlight=False)


def _interval(speed: Speed) -> str:
    if speed.ratio is None or speed.ratio.low is None or speed.ratio.high is None:
        return "none"
    return f"{_ratio(speed.ratio.low)} to {_ratio(speed.ratio.high)}"


def _ratio(value: float) -> str:
    """Three decimals, or as many as tell it from 0 and from 1."""
    if not 0.1 <= value < 10:
        return amount(value)
    return next((text for text in (f"{value:.{n}f}" for n in (3, 4, 5)) if float(text) != 1 or value == 1), "1.00000")


def _show_the_rest(comparison: Comparison, console: Console, *, everything: bool) -> None:
    console.line()
    quiet = comparison.quiet
    hint = "" if everything or not quiet else " (--all lists them)"
    print_line(console, f"No change beyond noise: {_count(len(quiet))}{hint}")
    if everything and quiet:
        _show_table(comparison, quiet, console)
    untold = comparison.unjudged(Unjudged.SAME_RECORDS, Unjudged.NO_MEASURE)
    for reason, labels in untold.items():
        print_line(console, f"Speed not compared, {reason.reason}: {_names(labels, all_of_them=everything)}")
    for name, cells in (("RUN_A", comparison.only_before), ("RUN_B", comparison.only_after)):
        if cells:
            print_line(console, f"Only in {name}: {_count(len(cells))}")
        for label, side in cells:
            print_line(console, f"{label}: {side.row.status}", indent=2)


def _show_verdict(verdict: Verdict, console: Console, *, everything: bool) -> None:
    limit = f"--fail-if-slower {100 * verdict.threshold:g}%"
    console.line()
    for reason, labels in verdict.unjudged.items():
        print_line(console, f"Not judged, {reason.reason}: {_names(labels, all_of_them=everything)}")
    if verdict.noisy:
        print_line(
            console,
            f"Too noisy to show a loss of {100 * verdict.threshold:g} %, measure more rounds: "
            f"{_names(verdict.noisy, all_of_them=everything)}",
        )
    if verdict.exit_code == FAILED:
        count = len(verdict.failures)
        print_line(console, f"{limit}: failed, {count} reason{'s' if count > 1 else ''}", style="bold red")
        for failure in verdict.failures:
            print_line(console, failure, indent=2, style="red")
    elif verdict.exit_code == PASSED:
        noisy = f", {len(verdict.noisy)} of them too noisy" if verdict.noisy else ""
        print_line(console, f"{limit}: passed, {_count(verdict.judged)} judged{noisy}", style="bold green")


def _count(cells: int) -> str:
    return f"{cells} cell{'' if cells == 1 else 's'}"


def _names(labels: Sequence[str], *, all_of_them: bool) -> str:
    shown = labels if all_of_them else labels[:_LISTED]
    more = len(labels) - len(shown)
    return "; ".join(shown) + (f"; and {more} more (--all lists them)" if more else "")


def _heading(console: Console, text: str) -> None:
    console.line()
    print_line(console, text, style="bold")
