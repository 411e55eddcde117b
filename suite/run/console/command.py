"""The command line of `run_bench.py`."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from suite.records.command_line import BadOption, ShownConsole, errors_told
from suite.records.environment import capture
from suite.run.console.display import Display, show_choices, show_plan
from suite.run.console.options import Options, choose_device, takes_options
from suite.run.locks import Locked
from suite.run.plan import plan_cells
from suite.run.resources import available_host_bytes
from suite.run.runner import Choice, Runner
from suite.tables.columns import Columns

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command()
@takes_options
def run(
    *,
    options: Options,
    timeout: Annotated[float | None, typer.Option(help="Seconds one cell may take; default: the scale's")] = None,
    out: Annotated[Path, typer.Option(help="Where records, tables and logs go")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every cell, even those that are done")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Run the cells again that failed")] = False,
    columns: Annotated[Columns, typer.Option(help="Of the printed table; the files have all")] = Columns.MAIN,
    list_: Annotated[
        bool, typer.Option("--list", help="List systems, variants, workloads and scales, and stop")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and stop")] = False,
) -> None:
    """Train the same DLRM on the same stream with every system, and compare.

    Every cell (system x workload x setting) is verified and trained in a fresh process. Then the systems take turns on
    the same batches, which gives their speed. Every cell leaves a record; run again, the same command goes on where it
    stopped. The exit code is 0 only if every planned cell ended `ok` or said up front that it is unsupported, 1 if one
    did not, 2 for a wrong option, 130 after Ctrl-C.

    For example:

    - `python run_bench.py --systems all`
    - `python run_bench.py --systems freq_cache,full_gpu --rounds 3`
    - `python run_bench.py --data-dir data --optimizer rowwise_adagrad`
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with errors_told():
        if list_:
            show_choices(ShownConsole())
            return
        if fresh and only_failed:
            raise BadOption("--fresh and --only-failed exclude each other")
        if timeout is not None and not timeout > 0:  # NaN compares false with everything
            raise BadOption(f"--timeout: {timeout} is out of range, it must be above 0")
        on_cpu = options.on_drive and options.device == "auto"
        device, why = choose_device("cpu" if on_cpu else options.device)
        cells, notes = plan_cells(options, device=device, host_bytes=available_host_bytes())
    choice = Choice.FRESH if fresh else Choice.ONLY_FAILED if only_failed else Choice.RESUME
    environment = capture()
    runner = Runner(cells, out=out, environment=environment, choice=choice, timeout_s=timeout)
    if dry_run:
        show_plan(ShownConsole(), cells, runner, notes=[why, *notes])
        return
    with errors_told(Locked, left="what is done is kept"):
        display = Display()
        for note in (why, *notes):
            display.note(note)
        runner.run(display)
        runner.report(ShownConsole(), columns)
        raise typer.Exit(runner.exit_code)


def main() -> None:
    """Entry point."""
    app()
