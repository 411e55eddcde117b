"""Command line: `python -m suite compare`."""

from pathlib import Path
from typing import Annotated

import typer

from suite.compare.compare import compare
from suite.compare.gate import NOTHING_JUDGED, judge, parse_share
from suite.compare.runs import read_run
from suite.compare.terminal import show
from suite.records.exits import errors_told
from suite.records.shown import ShownConsole


def compare_command(
    run_a: Annotated[
        Path, typer.Argument(metavar="RUN_A", help="Results directory, directory of records, or one record")
    ],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The same, of the run to compare with it")],
    *,
    fail_if_slower: Annotated[
        str | None, typer.Option(help="Gate: exit 1 if a cell lost more than this share of its speed, as in 10% or 0.1")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables")] = False,
    all_: Annotated[bool, typer.Option("--all", help="List cells without a change, too")] = False,
) -> None:
    """Two runs cell by cell: what became slower, larger or different in RUN_B, and whether that is beyond noise.

    Cells are matched by their whole configuration. What is compared is each system's speed relative to the baseline
    that took turns with it in the same run, with an interval; the baseline's own speed is told apart. Changes come
    first, cells without one in a line, and what differs between the machines above the numbers.

    Examples: `python -m suite compare results/main results/branch`; `python -m suite compare baseline new
    --fail-if-slower 10%`; `python -m suite compare laptop server --json`.

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
    verdict = None if threshold is None else judge(comparison, threshold)
    if as_json:
        typer.echo(comparison.to_json(None if verdict is None else verdict.content()), nl=False)
    else:
        show(comparison, verdict, ShownConsole(markup=False, highlight=False), everything=all_)
    if verdict is None:
        return
    if verdict.exit_code == NOTHING_JUDGED:
        errors.print(f"error: --fail-if-slower judged no cell; {'; '.join(verdict.remedies)}", style="red")
    raise typer.Exit(verdict.exit_code)
