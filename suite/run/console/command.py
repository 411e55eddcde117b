"""The command line of `run_bench.py`."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from suite.records.command_line import (
    BadOption,
    OptimizerName,
    ScaleName,
    ShownConsole,
    errors_told,
    parse_shares,
    parse_sizes,
    parse_workloads,
)
from suite.records.environment import capture
from suite.run.console.choices import Device, Tier, choose_device, make_display, named_systems
from suite.run.console.listing import show_choices, show_plan
from suite.run.locks import Locked
from suite.run.memory_probes import available_host_bytes
from suite.run.plan import Options, check_options, open_datasets, plan_cells
from suite.run.runner import Choice, Runner, exit_code
from suite.tables.columns import Columns
from systems.registry import split_list

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command()
def run(
    *,
    systems: Annotated[
        str, typer.Option(help="all, or names, with variants: freq_cache, fbgemm_uvm_caching[policy=lfu]")
    ] = "all",
    workloads: Annotated[
        str,
        typer.Option(
            help="all (the published datasets, or what --data-dir holds), or names: avazu, criteo_kaggle@drift"
        ),
    ] = "all",
    scale: Annotated[
        ScaleName | None,
        typer.Option(help="Size of tables, model and steps; default: the largest that suits the device"),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Train on datasets made by `python -m workloads prepare`; default: synthetic")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto takes a CUDA device where torch sees one")] = Device.AUTO,
    optimizer: Annotated[
        OptimizerName, typer.Option(metavar="<name>", help=f"Of rows and MLPs alike: {', '.join(OptimizerName)}")
    ] = OptimizerName.SGD,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default: the scale's")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step; default: the scale's")] = None,
    embedding_dim: Annotated[int | None, typer.Option(help="Width of every row; default: the scale's")] = None,
    cache_ratio: Annotated[
        str | None, typer.Option(help="Cached rows as a share of all rows, or a sweep: 0.005,0.015,0.05")
    ] = None,
    device_budget: Annotated[
        str | None,
        typer.Option(
            help="Equal bytes instead of equal ratio: 1.5GiB, or a sweep: 64MiB,256MiB. With --tier disk: the "
            "part of --host-budget that plays a device, under a level of RAM"
        ),
    ] = None,
    tier: Annotated[
        Tier, typer.Option(help="disk: the contest of rows on a drive, which a CPU trains, at a --host-budget")
    ] = Tier.MEMORY,
    host_budget: Annotated[
        str | None,
        typer.Option(help="With --tier disk: memory for rows in all, page cache included, or a sweep: 512MiB,1GiB"),
    ] = None,
    frequency_prefix: Annotated[
        float, typer.Option(help="Share of the training split that row frequencies are taken from")
    ] = 1.0,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Multiply dense layers in TF32 instead of fp32, on an NVIDIA device")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes that share every system's tables, and each batch; torchrun starts them"),
    ] = None,
    nnodes: Annotated[int, typer.Option(help="Machines that run this command, with as many of the ranks each")] = 1,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(help="host:port where ranks of several machines meet; default: the loopback alone")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps per cell; default: the scale's")] = None,
    rounds: Annotated[int, typer.Option(help="Repetitions of everything, each with a seed of its own")] = 1,
    seed: Annotated[int, typer.Option(help="Of streams, rows and dense weights in the first round")] = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds one cell may take; default: the scale's")] = None,
    out: Annotated[Path, typer.Option(help="Where records, tables and logs go")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every cell, even those that are done")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Run the cells again that failed")] = False,
    columns: Annotated[Columns, typer.Option(help="Of the printed table; the files have all")] = Columns.MAIN,
    list_: Annotated[
        bool, typer.Option("--list", help="List systems, variants, workloads and scales, and stop")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and stop")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the table")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event instead of text")] = False,
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
        on_drive, on_ranks = tier is Tier.DISK, ranks is not None
        if "disk" in split_list(systems) and not on_drive:
            raise BadOption("--systems disk are the rivals in keeping rows on a drive: give --tier disk")
        where, why = choose_device(Device.CPU if on_drive and device is Device.AUTO else device)
        datasets = None if data_dir is None else open_datasets(data_dir, workloads)
        options = Options(
            systems=tuple(named_systems(systems, cuda=where == "cuda", on_drive=on_drive, on_ranks=on_ranks)),
            workloads=parse_workloads(workloads) if datasets is None else tuple(datasets),
            device=where,
            scale=None if scale is None else scale.value,
            optimizer=optimizer.value,
            lr=lr,
            batch_size=batch_size,
            embedding_dim=embedding_dim,
            cache_ratios=parse_shares(cache_ratio, flag="--cache-ratio"),
            device_budgets=parse_sizes(device_budget, flag="--device-budget"),
            on_drive=on_drive,
            host_budgets=parse_sizes(host_budget, flag="--host-budget"),
            steps=steps,
            rounds=rounds,
            seed=seed,
            frequency_prefix=frequency_prefix,
            ranks=ranks,
            nodes=nnodes,
            rendezvous=rdzv_endpoint,
            tf32=tf32,
        )
        check_options(options)
        cells, notes = plan_cells(options, datasets=datasets, host_bytes=available_host_bytes())
    choice = Choice.FRESH if fresh else Choice.ONLY_FAILED if only_failed else Choice.RESUME
    environment = capture(threads=len(os.sched_getaffinity(0)))
    runner = Runner(cells, out=out, environment=environment, choice=choice, timeout_s=timeout)
    if dry_run:
        show_plan(ShownConsole(), cells, runner, notes=[why, *notes], as_json=as_json)
        return
    with errors_told(Locked, left="what is done is kept"):
        with make_display(quiet, as_json) as display:
            for note in (why, *notes):
                display.note(note)
            records = runner.run(display)
        runner.report(None if as_json else ShownConsole(), columns)
        raise typer.Exit(exit_code(records, planned=len(cells), interrupted=runner.interrupted))


def main() -> None:
    """Entry point."""
    app()
