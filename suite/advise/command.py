"""Command line: `python -m suite advise`."""

from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console

from suite.advise.advise import Advice, Advised, advise
from suite.advise.bound import EXAMPLES, load_hardware
from suite.records.command_line import (
    OptimizerName,
    ScaleName,
    ShownConsole,
    errors_told,
    parse_bytes,
)
from suite.records.environment import visible_gpu
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from suite.run.resources import available_host_bytes
from suite.simulate.options import (
    RATIO_POINTS,
    BatchSizeOption,
    DataDirOption,
    JsonOption,
    WorkloadOption,
    one_workload,
    parse_ratios,
)
from suite.tables.formatting import amount, binary_bytes
from suite.tables.terminal import print_line, print_table
from systems.registry import parse_systems
from workloads.progress import Shown

SYSTEMS = ("full_gpu", "fbgemm_uvm", "fbgemm_uvm_caching", "freq_cache", "freq_cache[policy=lfu]", "cpu_embeddings")
"""The systems of `--systems all`."""
_HEADS = ("system", "cached", "device", "host", "", "hits", "compute\nms", "link\nms", "bound\nit/s", "published\nit/s")
_RATIOS = (0.01, 0.05, 0.2)
_LEGEND = (
    "Device memory is that of rows, index, model and activations at the peak of a step. A step takes no less than its "
    "bound: what it computes and moves at peak rates, all paths at once. It is no prediction: run_bench.py measures."
)


def advise_command(
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
        str | None,
        typer.Option(help=f"Bound steps on this machine: {', '.join(EXAMPLES)}, or a JSON file"),
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="Dense layers multiply in TF32 on --hardware")] = False,
    systems: Annotated[str, typer.Option(help="all, or names, with variants: freq_cache[policy=lru]")] = "all",
    cache_ratio: Annotated[
        str | None, typer.Option(help="Cached rows as shares of all rows, e.g. 0.01,0.05,0.2 or 0.001:0.5")
    ] = None,
    optimizer: Annotated[
        OptimizerName, typer.Option(metavar="<name>", help=f"Of rows and MLPs alike: {', '.join(OptimizerName)}")
    ] = OptimizerName.SGD,
    batch_size: BatchSizeOption = None,
    embedding_dim: Annotated[int | None, typer.Option(help="Width of every row; default: the scale's")] = None,
    batches: Annotated[int, typer.Option(min=2, help="Replayed to count misses, a third of them uncounted")] = 150,
    as_json: JsonOption = False,
) -> None:
    """Memory that every system and cache size needs, and with --hardware the least time of a step.

    Bytes follow from the systems' own sizing, and nothing is built or measured. With --hardware the workload's ids are
    replayed, and what a step must compute and move is set against the machine's peak rates: a bound, beside the
    published rates where there are some.

    For example:

    - `python -m suite advise --workload avazu`
    - `python -m suite advise --workload criteo_1tb --hardware a100 --device-memory 8GiB`
    - `python -m suite advise --hardware my_gpu.json --json`
    """
    with errors_told() as errors:
        described = None if hardware is None else load_hardware(hardware)
        gpu = visible_gpu()
        options = Options(
            workloads=one_workload(workload, data_dir),
            data_dir=data_dir,
            systems=",".join(map(str, parse_systems(systems, every=SYSTEMS))),
            scale=scale or (ScaleName.FULL if described else None),
            optimizer=optimizer,
            batch_size=batch_size,
            embedding_dim=embedding_dim,
            tf32=tf32,
        )
        device = "cpu" if described is None and gpu is None else "cuda"
        cells, notes = plan_cells(options, device=device, host_bytes=available_host_bytes())
        for note in notes:
            errors.print(f"note: {note}", style="dim")
        budget = described.device_memory_bytes if described else gpu.memory_bytes if gpu else None
        with Shown() as shown:
            advice = advise(
                cells,
                described,
                ratios=_RATIOS if cache_ratio is None else parse_ratios(cache_ratio, points=RATIO_POINTS),
                budget=parse_bytes(device_memory, flag="--device-memory") if device_memory is not None else budget,
                batches=batches,
                on_progress=shown,
            )
        if as_json:
            typer.echo(advice.model_dump_json(indent=1))
        else:
            show(advice, ShownConsole(markup=False, highlight=False))


def show(advice: Advice, console: Console) -> None:
    """Print a table with a line per system and cache size, less empty columns, and why some systems have no line."""
    budget = "no budget" if advice.budget_bytes is None else f"budget {binary_bytes(advice.budget_bytes)}"
    print_line(
        console,
        f"{advice.workload}, scale {advice.scale}, batch {advice.batch_size:,}, dim {advice.embedding_dim}, "
        f"{advice.optimizer}, {budget}{f'; bounds for {advice.hardware}' if advice.hardware else ''}",
    )
    console.line()
    lines = []
    for system, sizes in groupby(advice.rows, lambda row: row.system):
        lines += [["" if number else system, *_cells_of(row)] for number, row in enumerate(sizes)]
    filled = [index for index in range(len(_HEADS)) if any(line[index] for line in lines)]
    if lines:
        heads = [_HEADS[index] for index in filled]
        text = [index for index, head in enumerate(heads) if head in ("system", "")]
        print_table(console, heads, [[line[index] for index in filled] for line in lines], text=text)
    for system, reason in advice.refused.items():
        print_line(console, f"{system}: {reason}", style="dim")
    print_line(console, _LEGEND, style="dim")


def _cells_of(row: Advised) -> list[str]:
    """The cells of a row behind its name."""
    least, published = row.least_s, row.published_steps_per_s
    rates = ("", "", "") if least is None else map(amount, (1e3 * least.compute, 1e3 * least.link, 1 / least.step))
    return [
        "" if row.cache_ratio is None else f"{row.cache_ratio:.2%}",
        binary_bytes(sum(row.device_bytes.values())),
        binary_bytes(row.host_bytes),
        "overflow" if row.overflows else "" if row.fits else "too big",
        "" if row.hit_rate is None else f"{row.hit_rate:.1%}",
        *rates,
        "" if published is None else f"{published:g}",
    ]
