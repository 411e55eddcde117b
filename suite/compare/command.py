"""Command line: `python -m suite compare`, and the gate of `--fail-if-slower`.

The gate never passes without judging.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suite.compare.compare import Comparison, Pair, RunRecords, compare, read_run
from suite.records.command_line import BadOption, ShownConsole, errors_told
from suite.records.record import Status
from suite.tables.terminal import print_line, print_table

PASSED, FAILED, NOTHING_JUDGED = 0, 1, 2
_LEGEND = (
    "Relative speed is that beside the baseline that took turns with the system in the same run: what slows both, the "
    "machine or code that they share, cancels. x: RUN_B over RUN_A, geometric means over builds, with Welch's 95 % "
    "interval, which knows the spread inside each run only. Beyond noise: it excludes 1, which chance alone does to "
    "about 1 cell in 20. Of the baseline nobody can tell whether machine or code changed it."
)


def parse_share(text: str) -> float:
    """The share of speed that may be lost: `10%`, `10 %` or `0.1`.

    Raises:
        BadOption: it is no share from 0 to below 1.
    """
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if rest.strip() or not 0 <= value < 1:  # NaN compares false with everything
        raise BadOption(f"--fail-if-slower: '{text}' is no share of speed: write 10% or 0.1, from 0 to below 1")
    return value


def judge(comparison: Comparison, threshold: float, console: Console) -> int:
    """Print whether RUN_B may pass, where the share `threshold` of speed may be lost, and return the exit code.

    A cell fails that

    - is slower by more than `threshold`: its speed beside the baseline's in RUN_B, over the same in RUN_A, is below
      `1 - threshold`, and the 95 % interval lies below 1, so that noise alone fails nothing. Speeds of two machines, or
      with other threads, are not judged;
    - was ok in RUN_A and is not in RUN_B, or is missing there, in a round too, or was timed and is not there;
    - was verified in RUN_A and is not in RUN_B.

    The code is 1 where one fails, else 2 where no speed could be judged, which must not look like a pass, and else 0.
    """
    loss = f"{100 * threshold:g}"
    judged = [pair for pair in comparison.pairs if pair.unjudged is None]
    noisy = [pair.label for pair in judged if threshold and not pair.shows(threshold)]
    failures = [failure for pair in comparison.pairs for failure in _failures(pair, threshold)]
    gone = (label for label, row in comparison.only_before.items() if row.status is Status.OK)
    failures += (f"{label}: ok in RUN_A, missing from RUN_B" for label in gone)
    console.line()
    if noisy:
        print_line(console, f"Too noisy to show a loss of {loss} %, measure more rounds: {'; '.join(noisy)}")
    if failures:
        reasons = _count(len(failures), "reason")
        print_line(console, f"--fail-if-slower {loss}%: failed, {reasons}", style="bold red")
        for failure in failures:
            print_line(console, failure, indent=2, style="red")
        return FAILED
    if not judged:
        return NOTHING_JUDGED
    among = f"{_count(len(judged), 'cell')} judged{f', {len(noisy)} of them too noisy' if noisy else ''}"
    print_line(console, f"--fail-if-slower {loss}%: passed, {among}", style="bold green")
    return PASSED


def _failures(pair: Pair, threshold: float) -> Iterator[str]:
    before, after, ratio = pair.before, pair.after, pair.ratio
    if before.status is Status.OK and after.status is not Status.OK:
        yield f"{pair.label}: ok in RUN_A, {after.status} in RUN_B"
    elif before.passed and not after.passed:
        yield f"{pair.label}: verified in RUN_A, not in RUN_B"
    elif before.status is Status.OK:
        if gone := sorted({run.cell.round for run in before.records} - {run.cell.round for run in after.records}):
            yield f"{pair.label}: rounds of RUN_A are missing from RUN_B: {', '.join(str(one + 1) for one in gone)}"
        if before.steps_per_s and not after.steps_per_s and after.same_kernel_as is None:
            yield f"{pair.label}: timed in RUN_A, not in RUN_B"
    if pair.unjudged is None and ratio is not None and pair.beyond_noise and ratio.value < 1 - threshold:
        yield f"{pair.label}: slower by {100 * (1 - ratio.value):.1f} %, more than {100 * threshold:g} %"


def compare_command(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Results directory")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="That of the run to compare with it")],
    *,
    fail_if_slower: Annotated[
        str | None, typer.Option(help="Gate: exit 1 if a cell lost more than this share of its speed, as in 10% or 0.1")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="List cells without a change, too")] = False,
) -> None:
    """Two runs cell by cell: what became slower, larger or different in RUN_B, and whether that is beyond noise.

    Cells are matched by their whole configuration. What is compared is each system's speed relative to the baseline
    that took turns with it in the same run, with an interval; the baseline's own speed is told apart. Changes are lines
    of one table, cells without one are counted, and what differs between the machines stands above the numbers.

    Examples: `python -m suite compare results/main results/branch`; `python -m suite compare baseline new
    --fail-if-slower 10%`.

    The exit code is 0. With --fail-if-slower 10% it is 1 if a cell is slower by more (its relative speed is below 0.9
    of what it was, and the interval below 1), no longer ok, no longer verified, or missing. It is 2 for a wrong option,
    if nothing can be compared, or if the gate could judge nothing.
    """
    with errors_told() as errors:
        threshold = None if fail_if_slower is None else parse_share(fail_if_slower)
        before, after = read_run("RUN_A", run_a), read_run("RUN_B", run_b)
        for problem in (*before.problems, *after.problems):
            errors.print(f"skipped: {problem}", style="yellow")
        comparison = compare(before, after)
        console = ShownConsole(markup=False, highlight=False)
        show(comparison, console, everything=all_)
        if threshold is None:
            return
        code = judge(comparison, threshold, console)
        if code == NOTHING_JUDGED:
            errors.print(f"error: --fail-if-slower judged no cell; {'; '.join(comparison.unjudged)}", style="red")
        raise typer.Exit(code)


def show(comparison: Comparison, console: Console, *, everything: bool) -> None:
    """Print a comparison; with `everything` cells without a change, too."""
    for run in (comparison.before, comparison.after):
        _show_run(run, console)
    if not comparison.differences:
        print_line(console, "Machine, packages and code are the same.")
    for name, before, after in comparison.differences:
        print_line(console, f"{name}: {before} -> {after}", indent=2)
    console.line()
    pairs = comparison.pairs
    changes = [(change, pair.label) for pair in pairs for change in pair.changes()]
    quiet = [pair for pair in pairs if pair.unjudged is None and not any(pair.changes())]
    lines = [[label, text] for (_, text), label in sorted(changes, key=lambda change: change[0][0])]
    if everything:
        lines += [[pair.label, pair.speeds] for pair in quiet]
    for alone, text in ((comparison.only_before, "only in RUN_A"), (comparison.only_after, "only in RUN_B")):
        lines += [[label, f"{text}: {row.status}"] for label, row in alone.items()]
    if lines:
        print_table(console, ["cell", "RUN_A -> RUN_B"], lines, text=(0, 1))
    slower = sum(pair.slower for pair in pairs)
    faster = sum(pair.beyond_noise for pair in pairs) - slower
    print_line(console, f"Relative speed beyond noise: {slower} slower, {faster} faster", style="bold")
    hint = "" if everything or not quiet else " (--all lists them)"
    print_line(console, f"No change beyond noise: {_count(len(quiet), 'cell')}{hint}")
    for reason, labels in comparison.unjudged.items():
        print_line(console, f"Speed not judged ({reason}): {'; '.join(labels)}")
    print_line(console, _LEGEND, style="dim")


def _show_run(run: RunRecords, console: Console) -> None:
    started = sorted(record.started_at[:10] for record in run.records)
    dates = " to ".join(dict.fromkeys((started[0], started[-1])))
    print_line(console, f"{run.name}: {run.path}, {_count(len(started), 'record')} of {dates}", style="bold")
    disturbed = [record for record in run.records if record.disturbed]
    if disturbed:
        said = f"e.g. {disturbed[0].cell.label}: {'; '.join(disturbed[0].disturbed)}; measure them again with --fresh."
        counted = _count(len(disturbed), "record")
        print_line(console, f"{run.name} has {counted} of a disturbed machine, {said}", style="yellow")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
