"""Command line: `python -m suite advise`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suite.advise import tables
from suite.advise.advising import SYSTEMS, Advice, Asked, Machine, advise
from suite.advise.against import Accuracy, predicted_again
from suite.advise.calibrate.calibrate import CalibrationFailed
from suite.advise.calibrate.calibration import RowType, kernel_of
from suite.advise.described import EXAMPLES, Hardware, Matmul, load_hardware
from suite.records.environment import visible_gpu
from suite.records.exits import errors_told
from suite.records.options import BadOption, OptimizerName, ScaleName, parse_bytes, parse_workloads
from suite.records.record import Cell
from suite.records.store import write_atomically
from suite.run.datasets import open_datasets
from suite.run.memory_probes import available_host_bytes
from suite.run.plan import Options, check_options, plan_cells
from suite.simulate.options import (
    RATIO_POINTS,
    BatchSizeOption,
    QuietOption,
    SeedOption,
    check_output,
    parse_ratios,
)
from systems import registry
from systems.registry import Variant, split_list
from workloads.progress import Shown

_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class RowTypes(enum.StrEnum):
    """Which types of rows to weigh."""

    FP32 = "fp32"
    FP16 = "fp16"
    ALL = "all"


def advise_command(
    context: typer.Context,
    *,
    workload: Annotated[
        str, typer.Option(help="One workload, as run_bench.py --workloads takes it: avazu, criteo_kaggle@drift")
    ] = "criteo_kaggle",
    scale: Annotated[
        ScaleName | None, typer.Option(help="Size of tables and model; default: small on a CPU, full with --hardware")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="A dataset made by `python -m workloads prepare`; default: synthetic")
    ] = None,
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
        int | None, typer.Option(help="Replayed to count misses, a third of them uncounted; default: 150")
    ] = None,
    seed: SeedOption = 0,
    seconds: Annotated[float, typer.Option(help="How long to calibrate")] = 45.0,
    against: Annotated[
        Path | None,
        typer.Option(help="A results directory: predict its cells, and say how far the predictions are off"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory that gets advice.json, advice.csv and advice.svg")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The advice as JSON on standard output, nothing else")
    ] = False,
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
    with errors_told(CalibrationFailed):
        if not seconds > 0:  # NaN compares false with everything
            raise BadOption(f"--seconds: {seconds} is out of range, it must be above 0")
        if batches is not None and batches < 2:
            raise BadOption(f"--batches: {batches} is out of range, it must be at least 2")
        described = None if hardware is None else load_hardware(hardware)
        machine = Machine(described=described, matmul=matmul, seconds=seconds)
        if out is not None:
            check_output(out)
        if against is not None:
            _check_alone(context)
            with shown:
                accuracy = predicted_again(against, machine, on_progress=shown)
            _present(accuracy, out=out, as_json=as_json)
            return
        cell = _cell(
            workload,
            data_dir=data_dir,
            on_gpu=hardware is not None or visible_gpu() is not None,
            options={
                "scale": scale.value if scale else "full" if hardware else None,
                "optimizer": optimizer.value,
                "batch_size": batch_size,
                "embedding_dim": embedding_dim,
                "seed": seed,
            },
        )
        asked = Asked(
            systems=_systems(systems, cell.device),
            row_types=list(RowType) if row_types is RowTypes.ALL else [RowType(row_types.value)],
            ratios=_RATIOS if cache_ratio is None else parse_ratios(cache_ratio, points=RATIO_POINTS),
            budget=_budget(device_memory, machine.described),
            batches=batches,
        )
        with shown:
            advice = advise(cell, asked, machine, on_progress=shown)
        _present(advice, out=out, as_json=as_json)


_WITH_AGAINST = {"against", "hardware", "matmul", "seconds", "out", "as_json", "quiet"}


def _check_alone(context: typer.Context) -> None:
    """Refuse options beside --against that say what else to predict. Raises `BadOption`."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in _WITH_AGAINST:
            raise BadOption(f"{option.opts[0]} and --against exclude each other: the records say what to predict")


def _present(found: Advice | Accuracy, *, out: Path | None, as_json: bool) -> None:
    """Write the files, if they are asked for, then print."""
    files = [] if out is None else write(found, out)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
        return
    console = Console(markup=False, highlight=False)
    if isinstance(found, Advice):
        tables.show(found, console)
    else:
        tables.show_accuracy(found, console)
    if out is not None:
        console.print(f"\nWrote {', '.join(files)} to {out}", soft_wrap=True)


def _cell(workload: str, *, data_dir: Path | None, on_gpu: bool, options: dict[str, object]) -> Cell:
    """The setting, as run_bench.py would plan it; its system is filled in later."""
    datasets = None if data_dir is None else open_datasets(data_dir, workload)
    names = parse_workloads(workload) if datasets is None else tuple(datasets)
    if len(names) != 1:
        raise BadOption(f"--workload: give one of {', '.join(names)}")
    asked = Options(
        systems=(Variant("full_gpu"),),
        workloads=names,
        device="cuda" if on_gpu else "cpu",
        **options,  # type: ignore[arg-type] # checked by name above
    )
    check_options(asked)
    cells, _ = plan_cells(asked, datasets=datasets, host_bytes=available_host_bytes())
    return cells[0]


def _systems(text: str, device: str) -> list[str]:
    """The variants to weigh, in order, each once."""
    entries = [name for part in split_list(text) for name in (SYSTEMS[device] if part == "all" else (part,))]
    if not entries:
        raise BadOption(f"--systems: none named: give all, or some of {', '.join(registry.SYSTEMS)}")
    variants = list(dict.fromkeys(str(Variant.parse(entry)) for entry in entries))
    for variant in variants:
        try:
            kernel_of(variant, device=device)
            registry.load(Variant.parse(variant))
        except ImportError as error:
            raise BadOption(
                f"--systems: {variant} needs {error.name}, which is not installed: run make setup"
            ) from None
    return variants


def _budget(text: str | None, machine: Hardware | None) -> int | None:
    if text is not None:
        return parse_bytes(text, flag="--device-memory")
    if machine is not None:
        return machine.device_memory_bytes
    gpu = visible_gpu()
    return None if gpu is None else gpu.memory_bytes


def write(found: Advice | Accuracy, folder: Path) -> list[str]:
    """Write JSON, CSV and, of advice, a figure, each whole or not at all. Returns the names of the files.

    Raises:
        StoreError: a file cannot be written.
    """
    name = "advice" if isinstance(found, Advice) else "against"
    files = {
        f"{name}.json": found.model_dump_json(indent=1) + "\n",
        f"{name}.csv": tables.frame(found).to_csv(index=False, lineterminator="\n"),
    }
    for file, text in files.items():
        write_atomically(folder / file, text)
    if isinstance(found, Advice) and found.predictions:
        tables.draw(found, folder / "advice.svg")
        return [*files, "advice.svg"]
    return list(files)
