"""Command line: `python -m suite advise`: bytes of every system and cache size, and on described hardware bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Literal

import typer
from rich.console import Console

from suite.advise.bound import EXAMPLES, Hardware, LeastSeconds, counts_of, least_seconds, load_hardware
from suite.advise.case import Case
from suite.records.command_line import OptimizerName, ScaleName, ShownConsole, errors_told, parse_bytes
from suite.records.environment import visible_gpu
from suite.records.groups import published_rows
from suite.records.measured import Model
from suite.records.record import Cell
from suite.records.scales import FULL
from suite.run.cell.feed import open_workload
from suite.run.console.options import Options
from suite.run.plan import plan_cells
from suite.run.resources import available_host_bytes
from suite.simulate.models.model import CannotReplay, Span
from suite.simulate.options import (
    RATIO_POINTS,
    BatchSizeOption,
    DataDirOption,
    JsonOption,
    WorkloadOption,
    one_workload,
    parse_ratios,
)
from suite.simulate.trace import WorkloadTrace
from suite.tables.formatting import amount, binary_bytes
from suite.tables.terminal import print_line, print_table
from systems.contract import CacheRatio, DeviceBytes, Verdict
from systems.registry import parse_systems
from workloads.batch import Workload
from workloads.progress import Shown

SYSTEMS = ("full_gpu", "fbgemm_uvm", "fbgemm_uvm_caching", "freq_cache", "freq_cache[policy=lfu]", "cpu_embeddings")
"""The systems of `--systems all`."""
CLOSEST = {"full_gpu": "torchrec", "freq_cache": "ColossalAI"}
"""Published methods by the system here that keeps and moves the same rows. The published cache too ranks rows by
frequency and fetches between steps; torchrec's tables lay on the device, see `suite.records.groups.NOTE`."""
_HEADS = ("system", "cached", "device", "host", "", "hits", "compute\nms", "link\nms", "bound\nit/s", "published\nit/s")
_RATIOS = (0.01, 0.05, 0.2)
_LEGEND = (
    "Device memory is that of rows, index, model and activations at the peak of a step. A step takes no less than its "
    "bound: what it computes and moves at peak rates, all paths at once. It is no prediction: run_bench.py measures."
)


class Advised(Model):
    """One system at one cache size. Without described hardware nothing is replayed, and no step is bounded."""

    system: str
    cache_ratio: float | None
    """Cached rows as a share of all; None: there is no cache."""
    slots: int
    device_bytes: dict[str, int]
    """Device memory by purpose, the model included."""
    host_bytes: int
    fits: bool
    """Whether it is within the budget of the device."""
    hit_rate: float | None = None
    """1 - unique misses / unique ids."""
    overflows: bool = False
    """Whether some batch has more distinct rows than the cache has slots."""
    least_s: LeastSeconds | None = None
    published_steps_per_s: float | None = None
    """Published rate of the method of `CLOSEST` in this setting."""


class Advice(Model):
    """Result of `python -m suite advise`; `refused` has a reason by system."""

    schema_version: Literal[2] = 2
    workload: str
    scale: str
    batch_size: int
    embedding_dim: int
    optimizer: str
    hardware: str | None
    budget_bytes: int | None
    rows: tuple[Advised, ...]
    refused: dict[str, str]


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
            ratios = _RATIOS if cache_ratio is None else parse_ratios(cache_ratio, points=RATIO_POINTS)
            if device_memory is not None:
                budget = parse_bytes(device_memory, flag="--device-memory")
            advice = _advise(cells, described, shown, ratios=ratios, budget=budget, batches=batches)
        if as_json:
            typer.echo(advice.model_dump_json(indent=1))
        else:
            show(advice, ShownConsole(markup=False, highlight=False))


def _advise(
    cells: list[Cell],
    hardware: Hardware | None,
    shown: Shown,
    *,
    ratios: Sequence[float],
    budget: int | None,
    batches: int,
) -> Advice:
    """Bytes of systems in one setting, caches at every ratio of rows; on described hardware, of which they are, bounds.

    These come from a replay of so many batches, a third of which is not counted. The budget is the device's.
    """
    cell = cells[0]
    workload = open_workload(cell)
    trace = WorkloadTrace(workload, prefix=cell.frequency_prefix)
    stop = min(trace.length, batches)
    span = Span(counted_from=min(stop // 3, max(0, stop - 1)), stop=stop)
    rows: list[Advised] = []
    refused: dict[str, str] = {}
    for number, one in enumerate(cells):
        try:
            for case in _sizes(one, workload, ratios, budget):
                if case.support.verdict is not Verdict.YES:
                    refused.setdefault(one.system, case.support.reason)
                    continue
                bounds: dict[str, object] = {}
                if hardware is not None:
                    shown("replaying ids", number, len(cells))
                    try:
                        bounds = _bounds(case, trace, span, hardware)
                    except CannotReplay as error:
                        refused.setdefault(one.system, str(error))
                row = {
                    "system": one.system,
                    "cache_ratio": case.slots / case.spec.rows if case.caches else None,
                    "slots": case.slots,
                    "device_bytes": case.device_bytes,
                    "host_bytes": case.host_bytes,
                    "fits": budget is None or sum(case.device_bytes.values()) <= budget,
                }
                rows.append(Advised.model_validate(row | bounds))
        except ImportError as error:
            refused[one.system] = f"needs {error.name}, which is not installed: run make setup"
    return Advice(
        **cell.model_dump(include={"workload", "scale", "batch_size", "embedding_dim", "optimizer"}),
        hardware=None if hardware is None else hardware.name,
        budget_bytes=budget,
        rows=tuple(rows),
        refused=refused,
    )


def _sizes(cell: Cell, workload: Workload, ratios: Sequence[float], budget: int | None) -> Iterator[Case]:
    """A system at every size: caches at every ratio and as large as a device budget allows."""
    whole = Case(cell=cell, workload=workload, budget=CacheRatio(ratio=1.0))
    if not whole.caches:
        yield whole
        return
    for ratio in ratios:
        yield replace(whole, budget=CacheRatio(ratio=ratio))
    left = 0 if budget is None else budget - sum(whole.beside_bytes.values())
    if left > 0:
        yield replace(whole, budget=DeviceBytes(total_bytes=left))


def _bounds(case: Case, trace: WorkloadTrace, span: Span, hardware: Hardware) -> dict[str, object]:
    """Fields of a row that follow from a replay and from hardware. Raises `CannotReplay`."""
    counts = counts_of(case, trace, span)
    return {
        "hit_rate": 1 - counts.unique_misses / counts.unique_ids if case.caches else None,
        "overflows": counts.overflow_batches > 0,
        "least_s": least_seconds(case, counts, hardware),
        "published_steps_per_s": published_rate(case),
    }


def published_rate(case: Case) -> float | None:
    """The published rate of the closest method, where the setting is the published one."""
    cell = case.cell
    for row in published_rows(cell.workload):
        setting = (CLOSEST.get(cell.system), cell.scale, cell.batch_size, cell.embedding_dim)
        same_cache = not case.caches or case.budget == CacheRatio(ratio=row.cache_ratio)
        if same_cache and setting == (row.system, FULL.name, row.batch_size, FULL.embedding_dim):
            return row.steps_per_s
    return None


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
        ", ".join(["too big"] * (not row.fits) + ["overflow"] * row.overflows),
        "" if row.hit_rate is None else f"{row.hit_rate:.1%}",
        *rates,
        "" if published is None else f"{published:g}",
    ]
