"""The command line of `run_bench.py`."""

from __future__ import annotations

import enum
import importlib.util
import json
import logging
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suite.records.environment import capture, visible_gpu
from suite.records.options import (
    BadOption,
    OptimizerName,
    ScaleName,
    parse_bytes,
    parse_frequencies,
    parse_prepared,
    parse_workloads,
)
from suite.records.record import Cell
from suite.records.scales import SCALES
from suite.records.store import StoreError
from suite.run.console import make_display
from suite.run.forecast import forecast
from suite.run.memory_probes import available_host_bytes
from suite.run.plan import Dataset, Options, check_options, plan_cells
from suite.run.runner import Choice, Locked, Runner, exit_code
from systems import registry
from workloads.schema import DATASETS, SCHEMAS
from workloads.streams.tracks import TRACKS

_USAGE = 2


class Device(enum.StrEnum):
    """Where to run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


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
        float | None, typer.Option(help="Cached rows as a share of all rows; default: the scale's")
    ] = None,
    device_budget: Annotated[str | None, typer.Option(help="Equal bytes instead of equal ratio, e.g. 1.5GiB")] = None,
    frequency_prefix: Annotated[
        float, typer.Option(help="Share of the training split that row frequencies are taken from")
    ] = 1.0,
    frequencies: Annotated[
        str, typer.Option(help="exact, or sketch:64MB for estimates in bounded memory, error in the record")
    ] = "exact",
    steps: Annotated[int | None, typer.Option(help="Training steps per cell; default: the scale's")] = None,
    rounds: Annotated[int, typer.Option(help="Interleaved repetitions; intervals need at least 2")] = 1,
    seed: Annotated[int, typer.Option(help="Of streams, rows, dense weights and order")] = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds one cell may take; default: the scale's")] = None,
    out: Annotated[Path, typer.Option(help="Where records, tables and logs go")] = Path("results"),
    no_predict: Annotated[
        bool,
        typer.Option("--no-predict", help="Skip the calibration before the first cell: no predictions, no optimum"),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every cell, even those that are done")] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Run the cells again that failed")] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List systems, variants, workloads and scales, and stop")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and stop")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the table")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event instead of text")] = False,
) -> None:
    """Train the same DLRM on the same stream with every system, and compare.

    Every cell (system x workload x setting) runs in a fresh process, is verified before it is timed, and leaves a
    record; run again, the same command goes on where it stopped. The exit code is 0 only if every planned cell ended
    `ok` or said up front that it is unsupported, 1 if one did not, 2 for a wrong option, 130 after Ctrl-C.

    For example:

    - `python run_bench.py --systems all`
    - `python run_bench.py --systems freq_cache,full_gpu --rounds 3`
    - `python run_bench.py --data-dir data --optimizer rowwise_adagrad`
    """
    console = Console(stderr=True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if list_:
        _list(Console())
        return
    try:
        if fresh and only_failed:
            raise BadOption("--fresh and --only-failed exclude each other")
        if timeout is not None and not timeout > 0:  # NaN compares false with everything
            raise BadOption(f"--timeout: {timeout} is out of range, it must be above 0")
        where, why = _device(device)
        datasets, found = _datasets(data_dir, workloads) if data_dir is not None else (None, parse_workloads(workloads))
        options = Options(
            systems=tuple(_systems(systems)),
            workloads=found,
            device=where,
            scale=None if scale is None else scale.value,
            optimizer=optimizer.value,
            lr=lr,
            batch_size=batch_size,
            embedding_dim=embedding_dim,
            cache_ratio=cache_ratio,
            device_budget_bytes=None if device_budget is None else parse_bytes(device_budget, flag="--device-budget"),
            steps=steps,
            rounds=rounds,
            seed=seed,
            frequency_prefix=frequency_prefix,
            frequency_sketch_bytes=parse_frequencies(frequencies),
        )
        check_options(options)
        cells, notes = plan_cells(options, datasets=datasets, host_bytes=available_host_bytes())
    except ValueError as error:
        # every error of options, names and data is a ValueError with a sentence for the user
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(_USAGE) from None
    choice = Choice.FRESH if fresh else Choice.ONLY_FAILED if only_failed else Choice.RESUME
    runner = Runner(
        cells,
        out=out,
        environment=capture(threads=_threads()),
        choice=choice,
        timeout_s=timeout,
        forecaster=None if no_predict else forecast,
    )
    if dry_run:
        _show_plan(Console(), cells, runner, notes=[why, *notes], as_json=as_json)
        return
    try:
        with make_display(quiet, as_json) as display:
            for note in (why, *notes):
                display.note(note)
            records = runner.run(display)
        runner.report(None if as_json else Console())
    except (Locked, StoreError) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    raise typer.Exit(exit_code(records, planned=len(cells), interrupted=runner.interrupted))


def main() -> None:
    """Entry point."""
    app()


def _systems(text: str) -> list[registry.Variant]:
    """The variants named; only those that carry parameters or a module of their own are imported to be checked."""
    variants = registry.parse_systems(text)
    for variant in variants:
        if variant.parameters or ":" in variant.name:
            try:
                registry.load(variant)
            except registry.UnknownSystem:
                raise
            except Exception as error:  # a module of one's own can raise anything while it is imported
                if ":" in variant.name:
                    raise BadOption(f"--systems: cannot import {variant}: {type(error).__name__}: {error}") from error
                # a package is missing for one of ours: its cell will say which
    return variants


def _device(device: Device) -> tuple[str, str]:
    """The device to run on, and why."""
    if device is Device.CPU:
        return "cpu", "device: cpu, as asked"
    gpu = visible_gpu()
    if gpu is None:
        if device is Device.CUDA:
            raise BadOption("--device cuda: no NVIDIA device is visible; use --device cpu")
        return "cpu", "device: cpu, because no NVIDIA device is visible"
    import torch  # only now: the parent process of a CPU run does without

    if torch.cuda.is_available():
        return "cuda", f"device: cuda ({gpu.model})"
    remedy = "run make setup again, it picks the CUDA builds when it sees the device"
    if device is Device.CUDA:
        raise BadOption(f"--device cuda: torch {torch.__version__} cannot use the {gpu.model}; {remedy}")
    return "cpu", f"device: cpu, because torch {torch.__version__} cannot use the {gpu.model}; {remedy}"


def _datasets(data_dir: Path, workloads: str) -> tuple[dict[str, Dataset], tuple[str, ...]]:
    """The prepared datasets to train on; `all` means all that the directory holds.

    Raises:
        BadOption: it does not hold what was asked for.
        DataError: nothing is prepared there, or it is damaged.
    """
    from workloads.prepared import PreparedWorkload, find_prepared

    prepared = find_prepared(data_dir)
    names = parse_prepared(workloads, prepared, data_dir=data_dir)
    found = {}
    for name in names:
        workload = PreparedWorkload.open(prepared[name], batch_size=1)
        found[name] = Dataset(
            folder=prepared[name],
            digest=workload.digest,
            training_rows=workload.epoch_rows(),
            table_rows=sum(rows for _, rows in workload.tables),
        )
    return found, names


def _threads() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _show_plan(console: Console, cells: list[Cell], runner: Runner, *, notes: list[str], as_json: bool) -> None:
    if as_json:
        for cell in cells:
            console.print_json(json.dumps({"state": runner.state(cell), **cell.model_dump(mode="json")}), indent=None)
        return
    for note in notes:
        console.print(note, markup=False, highlight=False)
    for cell in cells:
        budget = f"{cell.device_budget_bytes:,} B" if cell.device_budget_bytes else f"ratio {cell.cache_ratio}"
        console.print(
            f"{runner.state(cell):9} {cell.label}: {cell.data}, {cell.scale} on {cell.device}, {cell.optimizer} "
            f"lr {cell.lr:g}, batch {cell.batch_size}, dim {cell.embedding_dim}, {budget}, {cell.steps} steps",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _list(console: Console) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    line("Systems (all), the first value of a parameter being the default:")
    for names, title in ((registry.SYSTEMS, ""), (registry.CONTROLS, "Controls (by name only):")):
        if title:
            line(title)
        for name in names:
            try:
                found = registry.load(registry.Variant(name))
            except ImportError as error:
                line(f"  {name}: unavailable, {error}")
                continue
            variants = "; ".join(f"{key}={'|'.join(values)}" for key, values in found.variants.items())
            line(f"  {name}{f' [{variants}]' if variants else ''}: {_summary(found)}")
    line("Your own system: module:Class")
    for title, schemas in (
        ("Workloads (all):", DATASETS.values()),
        ("More synthetic workloads, by name:", [s for s in SCHEMAS.values() if s.name not in DATASETS]),
    ):
        line(title)
        for schema in schemas:
            tables = f"{len(schema.categorical)} tables, {schema.table_rows:,} rows in full"
            line(f"  {schema.name}: {schema.title}, {tables}")
    line("Tracks of synthetic workloads, e.g. avazu@drift, with their parameters and defaults:")
    for name, track in TRACKS.items():
        line(f"  {name} [{', '.join(f'{field.name}={field.default}' for field in fields(track))}]: {_summary(track)}")
    line("Your own data: prepare them, then name their directory with --data-dir")
    line("Scales:")
    for scale in SCALES.values():
        rows = "published table sizes" if scale.max_rows is None else f"about {scale.max_rows:,} rows"
        line(f"  {scale.name}: {rows}, dim {scale.embedding_dim}, batch {scale.batch_size}")
    if importlib.util.find_spec("fbgemm_gpu") is None:
        line("fbgemm-gpu is not installed: run make setup")


def _summary(thing: type) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
