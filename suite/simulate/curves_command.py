"""Command line: `python -m suite curves`.

With `--counted`, what fbgemm's caches counted on a device stands beside what was predicted for the same batches.
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from rich.console import Console

from suite.records.command_line import BadOption, ScaleName, ShownConsole, errors_told, parse_bytes
from suite.records.environment import capture
from suite.records.measured import Model
from suite.records.scales import SCALES
from suite.records.store import write_atomically
from suite.simulate.curves import miss_curves
from suite.simulate.models.fbgemm import FbgemmCacheModel, uvm_cache_stats
from suite.simulate.models.model import Setting, Span, replay
from suite.simulate.options import (
    BatchesOption,
    BatchSizeOption,
    DataDirOption,
    JsonOption,
    OutOption,
    QuietOption,
    SeedOption,
    TraceOption,
    WarmupOption,
    WorkloadOption,
    check_output,
    open_trace,
    read_input,
    span_of,
)
from suite.simulate.planner_inputs import planner_inputs
from suite.simulate.show_curves import draw, frames, show, to_json
from suite.simulate.slots_by_table import split_slots
from suite.simulate.trace import SomeTables, Trace
from suite.tables.sheet import csv_text
from suite.tables.terminal import print_line, print_table
from workloads.progress import Shown

_COUNTED = "docs/torchrec-planner.md shows what to write"
Row = tuple[str, int, int, int | None]
"""A statistic: its name, what fbgemm counted, what its simulated cache counts, and what the curve says."""


class CountedCache(Model):
    """One table-batched embedding (TBE) with an LRU cache."""

    tables: list[str] = Field(min_length=1)
    """Its cached tables, in its order."""
    slots: int = Field(gt=0)
    """Rows of its cache, `tbe.lxu_cache_weights.shape[0]`."""
    prefetch: bool = False
    """Whether it was made with `prefetch_pipeline`."""
    uvm_cache_stats: list[int] = Field(min_length=6, max_length=6)
    """`tbe.get_uvm_cache_stats(use_local_cache=False).tolist()`."""


class Counted(Model):
    """What a run counted, from the first batch of the stream on."""

    warmup_batches: int = Field(default=0, ge=0)
    """Trained before `tbe.reset_uvm_cache_stats()`."""
    counted_batches: int = Field(gt=0)
    """Trained after it."""
    caches: list[CountedCache]
    """Of every TBE that has one."""


def curves_command(
    *,
    workload: WorkloadOption = "criteo_kaggle",
    scale: Annotated[
        ScaleName, typer.Option(help="Table sizes of synthetic streams; batch size by default")
    ] = ScaleName.FULL,
    data_dir: DataDirOption = None,
    trace: TraceOption = None,
    batch_size: BatchSizeOption = None,
    seed: SeedOption = 0,
    batches: BatchesOption = None,
    warmup: WarmupOption = None,
    sample: Annotated[
        float | None, typer.Option(help="Follow this share of the rows, as in 0.01, and estimate; default: all, exact")
    ] = None,
    per_table: Annotated[bool, typer.Option("--per-table", help="A curve of each table as well")] = False,
    split: Annotated[
        str | None, typer.Option(help="Divide so many slots, or such a share of the rows (0.01), among the tables")
    ] = None,
    torchrec: Annotated[
        Path | None, typer.Option(help="Write what torchrec's planner asks of each table's cache to this file, as JSON")
    ] = None,
    prefetch: Annotated[
        bool, typer.Option("--prefetch", help="With --torchrec: training prefetches, a cache holds two batches")
    ] = False,
    reserved_memory: Annotated[
        str | None, typer.Option(help="With --torchrec: device memory that fbgemm must leave free, as in 2GiB")
    ] = None,
    counted: Annotated[
        Path | None, typer.Option(help="JSON of what fbgemm counted on a device, to lay beside the prediction")
    ] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Misses of an LRU cache at every size at once, and how to divide slots among tables.

    One pass over the stream gives all sizes exactly, from the largest batch on. With --split, the slots go where they
    save most misses, and one cache for all tables and equal shares of the rows stand beside that.

    For example:

    - `python -m suite curves --scale small --per-table`
    - `python -m suite curves --split 0.01 --out curves/`
    - `python -m suite curves --workload criteo_1tb --sample 0.01`
    - `python -m suite curves --workload avazu --torchrec plan.json`

    The exit code is 2 for a wrong option or bad data, 130 after Ctrl-C.
    """
    with errors_told() as errors:
        if torchrec is None and (prefetch or reserved_memory is not None):
            raise BadOption("--prefetch and --reserved-memory say what --torchrec writes: give --torchrec too")
        reserved = 0 if reserved_memory is None else parse_bytes(reserved_memory, flag="--reserved-memory")
        measured = None if counted is None else read_input(Counted, counted, flag="--counted: ", remedy=_COUNTED)
        if out is not None:
            check_output(out)
        if torchrec is not None:
            check_output(torchrec.parent, flag="--torchrec")
        opened = open_trace(
            workload=workload, scale=scale.value, data_dir=data_dir, trace=trace, batch_size=batch_size, seed=seed
        )
        if measured is not None:
            check_counted(opened, measured)
        slots = None if split is None else parse_slots(split, rows=opened.rows)
        span = span_of(opened, batches=batches, warmup=warmup)
        with Shown(quiet=quiet) as shown:
            by_table = per_table or slots is not None or torchrec is not None
            curves = miss_curves(opened, span, sample, by_table, partial(shown, "batches"))
        divided = None if slots is None else split_slots(curves, slots)
        samples = SCALES[scale].batch_size if batch_size is None else batch_size
        stream = {
            "trace_file": None if trace is None else str(trace),
            "data_dir": None if data_dir is None else str(data_dir),
            "scale": scale.value,
            "batch_size": samples,
            "seed": seed,
        }
        environment = capture(threads=len(os.sched_getaffinity(0))).model_dump(mode="json")
        record = to_json(curves, divided, stream=stream, environment=environment)
        if as_json:
            typer.echo(record, nl=False)
        else:
            show(curves, divided, ShownConsole(markup=False, highlight=False))
        if out is not None:
            write_atomically(out / "curves.json", record)
            tables = frames(curves, divided)
            for name, frame in tables.items():
                write_atomically(out / f"{name}.csv", csv_text(frame))
            names = [*(f"{name}.csv" for name in tables), draw(curves, divided, out).name]
            errors.print(f"Wrote curves.json, {', '.join(names)} to {out}")
        if measured is not None:
            show_beside(beside(opened, measured), ShownConsole(markup=False, highlight=False, stderr=as_json))
        if torchrec is not None:
            inputs = planner_inputs(curves, batch_size=samples, slots=slots, prefetch=prefetch, reserved_bytes=reserved)
            write_atomically(torchrec, inputs.model_dump_json())
            errors.print(f"Wrote {torchrec}")


def parse_slots(text: str, *, rows: int) -> int:
    """Slots of `338000`, or of a share of the rows, `0.01`.

    Raises:
        BadOption: it is neither, or out of range.
    """
    try:
        number = float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        raise BadOption(f"--split: '{text}' is no number: write slots, as in 338000, or a share, as in 0.01") from None
    if isinstance(number, int):
        if not 1 <= number <= rows:
            raise BadOption(f"--split: {number:,} slots are out of range, it must be 1 to the {rows:,} rows")
        return number
    if not 0 < number <= 1:  # NaN compares false with everything
        raise BadOption(f"--split: {text} is out of range, a share of the rows is above 0 and at most 1")
    return max(1, int(rows * number))


def check_counted(trace: Trace, counted: Counted) -> None:
    """Raises `BadOption`: the trace is shorter than the run, or has other tables."""
    batches = counted.warmup_batches + counted.counted_batches
    if batches > trace.length:
        raise BadOption(f"--counted: {batches} batches were trained, {trace.name} has {trace.length}")
    for cache in counted.caches:
        SomeTables(trace, cache.tables)


def beside(trace: Trace, counted: Counted) -> list[tuple[CountedCache, list[Row]]]:
    """The statistics of every cache, counted and predicted, of what `check_counted` lets pass.

    The simulated cache has fbgemm's sets of 32 ways and is exact; the curve is that of an LRU cache without sets, which
    torchrec's planner goes by.
    """
    span = Span(counted_from=counted.warmup_batches, stop=counted.warmup_batches + counted.counted_batches)
    found = []
    for cache in counted.caches:
        part = SomeTables(trace, cache.tables)
        parameters = {"policy": "lru", "prefetch": "on" if cache.prefetch else "off"}
        simulated = uvm_cache_stats(
            replay(FbgemmCacheModel(Setting(trace=part, span=span, slots=cache.slots), parameters))
        )
        curve = miss_curves(part, span).pooled
        expected = {
            "num_requested_indices": curve.lookups,
            "num_unique_indices": curve.unique_ids,
            "num_unique_misses": curve.misses(cache.slots),
        }
        pairs = zip(simulated.items(), cache.uvm_cache_stats, strict=True)
        found.append((cache, [(name, real, value, expected.get(name)) for (name, value), real in pairs]))
    return found


def show_beside(found: list[tuple[CountedCache, list[Row]]], console: Console) -> None:
    """Print a table per cache."""
    for cache, rows in found:
        some = ", ".join(cache.tables[:4]) + (", ..." if len(cache.tables) > 4 else "")
        print_line(console, f"\n{cache.slots:,} slots of fbgemm's for {len(cache.tables)} tables: {some}", style="bold")
        lines = [
            [name, f"{real:,}", f"{simulated:,}", "" if curve is None else f"{curve:,}", f"{simulated - real:+,}"]
            for name, real, simulated, curve in rows
        ]
        print_table(console, ["statistic", "counted", "simulated", "LRU curve", "simulated\n- counted"], lines)
