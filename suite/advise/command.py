"""Command line: `python -m suite advise`."""

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from suite.advise import tables
from suite.advise.advising import advise
from suite.advise.against import predicted_again
from suite.advise.calibrate.calibrate import CalibrationFailed
from suite.advise.case import RowType
from suite.advise.described import EXAMPLES, DescribedCosts, Matmul, load_hardware
from suite.records.environment import VIRTUAL_DEVICE, visible_gpu
from suite.records.exits import errors_told
from suite.records.options import BadOption, OptimizerName, ScaleName, parse_bytes, parse_prepared, parse_workloads
from suite.records.record import Cell
from suite.records.shown import ShownConsole
from suite.records.store import write_atomically
from suite.run.memory_probes import available_host_bytes
from suite.run.plan import Options, check_options, open_datasets, plan_cells
from suite.simulate.options import (
    RATIO_POINTS,
    BatchSizeOption,
    DataDirOption,
    JsonOption,
    OutOption,
    QuietOption,
    SeedOption,
    WorkloadOption,
    check_output,
    parse_ratios,
)
from suite.tables.sheet import csv_text
from systems import registry
from systems.registry import Variant, split_list
from workloads.prepared import find_prepared
from workloads.progress import Shown

SYSTEMS = {
    "cpu": (
        "full_gpu",
        "torchrec_uvm",
        "reference",
        "freq_cache[policy=static]",
        "freq_cache[policy=lfu]",
        "freq_cache[policy=lru]",
        "freq_cache[policy=lfu,look_ahead=16]",
    ),
    "cuda": (
        "full_gpu",
        "fbgemm_uvm",
        "fbgemm_uvm_caching[policy=lru]",
        "fbgemm_uvm_caching[policy=lfu]",
        "fbgemm_uvm_caching[prefetch=on]",
        "freq_cache[policy=static]",
        "freq_cache[policy=lfu]",
        "freq_cache[policy=static,look_ahead=16]",
        "freq_cache[policy=lfu,look_ahead=16]",
    ),
}
"""What `all` weighs by device. On a CPU fbgemm's UVM variants are what `full_gpu` is."""
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class RowTypes(enum.StrEnum):
    """Which types of rows to weigh."""

    FP32 = "fp32"
    FP16 = "fp16"
    ALL = "all"


def advise_command(
    context: typer.Context,
    *,
    workload: WorkloadOption = "criteo_kaggle",
    scale: Annotated[
        ScaleName | None, typer.Option(help="Size of tables and model; default: small on a CPU, full with --hardware")
    ] = None,
    data_dir: DataDirOption = None,
    device_memory: Annotated[
        str | None,
        typer.Option(help="What rows, model and activations may take, e.g. 8GiB; default: the device's, none on a CPU"),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help=f"A machine one does not have: {', '.join(EXAMPLES)}, or a JSON file")
    ] = None,
    matmul: Annotated[Matmul, typer.Option(help="Products on --hardware; torch's default is fp32")] = Matmul.FP32,
    systems: Annotated[str, typer.Option(help="all, or names, with variants: freq_cache[policy=lru]")] = "all",
    row_types: Annotated[RowTypes, typer.Option(help="What rows are kept in")] = RowTypes.FP32,
    cache_ratio: Annotated[
        str | None, typer.Option(help="Cached rows as shares of all rows, e.g. 0.01,0.05,0.2 or 0.001:0.5")
    ] = None,
    optimizer: Annotated[
        OptimizerName, typer.Option(metavar="<name>", help=f"Of rows and MLPs alike: {', '.join(OptimizerName)}")
    ] = OptimizerName.SGD,
    batch_size: BatchSizeOption = None,
    embedding_dim: Annotated[int | None, typer.Option(help="Width of every row; default: the scale's")] = None,
    batches: Annotated[
        int | None, typer.Option(min=2, help="Replayed to count misses, a third of them uncounted; default: 150")
    ] = None,
    seed: SeedOption = 0,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to calibrate")] = 45.0,
    against: Annotated[
        Path | None,
        typer.Option(help="A results directory: predict its cells, and say how far the predictions are off"),
    ] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict step time and device memory of every system and cache size, and recommend one.

    Costs are measured on this machine in under two minutes, on streams of their own, or taken from a described machine;
    misses come from a replay of the workload's ids. Nothing is fitted to the steps that are predicted.

    For example:

    - `python -m suite advise --workload avazu`
    - `python -m suite advise --workload criteo_1tb --hardware a100 --device-memory 8GiB --out advice/`
    - `python -m suite advise --hardware my_gpu.json --row-types all`
    - `python -m suite advise --against results`
    """
    shown = Shown(quiet=quiet or as_json)
    with errors_told(CalibrationFailed) as errors:
        described = None if hardware is None else DescribedCosts(load_hardware(hardware), matmul)
        if against is not None:
            _check_alone(context)
            with shown:
                accuracy = predicted_again(against, described, data_dir=data_dir, seconds=seconds, on_progress=shown)
            if as_json:
                typer.echo(accuracy.model_dump_json(indent=1))
            else:
                tables.show_accuracy(accuracy, ShownConsole(markup=False, highlight=False))
            return
        if out is not None:
            check_output(out)
        gpu = visible_gpu()
        if described is None and gpu is not None and gpu.model == VIRTUAL_DEVICE:
            raise BadOption(
                f"--hardware: the device here is a {gpu.model}, of which no time means anything: name a machine, as in "
                "--hardware a100"
            )
        device = "cpu" if described is None and gpu is None else "cuda"
        cells, notes = _cells(
            workload,
            data_dir=data_dir,
            systems=_systems(systems, device),
            device=device,
            scale=scale.value if scale else "full" if described else None,
            optimizer=optimizer.value,
            batch_size=batch_size,
            embedding_dim=embedding_dim,
            seed=seed,
        )
        for note in notes:
            errors.print(f"note: {note}", style="dim")
        budget = described.hardware.device_memory_bytes if described else gpu.memory_bytes if gpu else None
        with shown:
            advice = advise(
                cells,
                described,
                row_types=list(RowType) if row_types is RowTypes.ALL else [RowType(row_types.value)],
                ratios=_RATIOS if cache_ratio is None else parse_ratios(cache_ratio, points=RATIO_POINTS),
                budget=parse_bytes(device_memory, flag="--device-memory") if device_memory is not None else budget,
                batches=batches,
                seconds=seconds,
                on_progress=shown,
            )
        if out is not None:
            write_atomically(out / "advice.json", advice.model_dump_json(indent=1) + "\n")
            write_atomically(out / "advice.csv", csv_text(tables.frame(advice)))
            tables.draw(advice, out / "advice.svg")
        if as_json:
            typer.echo(advice.model_dump_json(indent=1))
            return
        console = ShownConsole(markup=False, highlight=False)
        tables.show(advice, console)
        if out is not None:
            console.print(f"\nWrote advice.json, advice.csv and advice.svg to {out}", soft_wrap=True)


_WITH_AGAINST = {"against", "data_dir", "hardware", "matmul", "seconds", "as_json", "quiet"}


def _check_alone(context: typer.Context) -> None:
    """Refuse options beside --against that say what else to predict. Raises `BadOption`."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in _WITH_AGAINST:
            raise BadOption(f"{option.opts[0]} and --against exclude each other: the records say what to predict")


def _cells(workload: str, *, data_dir: Path | None, **options: Any) -> tuple[list[Cell], list[str]]:  # noqa: ANN401
    """The systems in the setting, as run_bench.py would plan them, and what was decided on the user's behalf.

    `options` are fields of `Options`.
    """
    if data_dir is None:
        names = parse_workloads(workload, flag="--workload")
    else:
        names = parse_prepared(workload, find_prepared(data_dir), data_dir=data_dir, flag="--workload")
    if len(names) != 1:
        raise BadOption(f"--workload: give one of {', '.join(names)}")
    asked = Options(workloads=names, **options)
    check_options(asked)
    datasets = None if data_dir is None else open_datasets(data_dir, workload)
    return plan_cells(asked, datasets=datasets, host_bytes=available_host_bytes())


def _systems(text: str, device: str) -> tuple[Variant, ...]:
    """The variants to weigh, in order, each once."""
    entries = [name for part in split_list(text) for name in (SYSTEMS[device] if part == "all" else (part,))]
    if not entries:
        raise BadOption(f"--systems: none named: give all, or some of {', '.join(registry.SYSTEMS)}")
    variants = tuple(dict.fromkeys(Variant.parse(entry) for entry in entries))
    for variant in variants:
        try:
            registry.load(variant)
        except ImportError as error:
            raise BadOption(
                f"--systems: {variant} needs {error.name}, which is not installed: run make setup"
            ) from None
    return variants
