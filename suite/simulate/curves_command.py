"""Command line: `python -m suite curves`."""

import json
import os
from functools import partial
from pathlib import Path
from pprint import pformat
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from suite.records.command_line import BadOption, ScaleName, ShownConsole, errors_told
from suite.records.environment import capture
from suite.records.store import write_atomically
from suite.simulate import options
from suite.simulate.curves import Curve, Curves, SlotSplit, miss_curves, split_slots
from suite.simulate.planner_inputs import planner_inputs
from suite.tables.formatting import amount
from suite.tables.sheet import csv_text
from suite.tables.terminal import print_line, print_table
from workloads.progress import Shown

_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_TABLE_SHARES = (0.01, 0.05, 0.2, 1.0)
_PER_OCTAVE = 8
_LEGEND = "*: the largest batch does not fit, the cache misses more than this."


def curves_command(
    *,
    workload: options.WorkloadOption = "criteo_kaggle",
    scale: Annotated[
        ScaleName, typer.Option(help="Table sizes of synthetic streams; batch size by default")
    ] = ScaleName.FULL,
    data_dir: options.DataDirOption = None,
    trace: options.TraceOption = None,
    batch_size: options.BatchSizeOption = None,
    seed: options.SeedOption = 0,
    batches: options.BatchesOption = None,
    warmup: options.WarmupOption = None,
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
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Misses of an LRU cache at every size at once, and how to divide slots among tables.

    One pass over the stream gives all sizes exactly, from the largest batch on. With --split, the slots go where they
    save most misses, and one cache for all tables stands beside that.

    For example:

    - `python -m suite curves --scale small --per-table`
    - `python -m suite curves --split 0.01 --out curves/`
    - `python -m suite curves --workload avazu --torchrec plan.json`

    The exit code is 2 for a wrong option or bad data, 130 after Ctrl-C.
    """
    with errors_told() as errors:
        if torchrec is None and prefetch:
            raise BadOption("--prefetch says what --torchrec writes: give --torchrec too")
        if out is not None:
            options.check_output(out)
        if torchrec is not None:
            options.check_output(torchrec.parent, flag="--torchrec")
        opened = options.open_trace(
            workload=workload, scale=scale.value, data_dir=data_dir, trace=trace, batch_size=batch_size, seed=seed
        )
        slots = None if split is None else options.parse_slots(split, rows=opened.rows)
        span = options.span_of(opened, batches=batches, warmup=warmup)
        with Shown() as shown:
            by_table = per_table or slots is not None or torchrec is not None
            curves = miss_curves(opened, span, per_table=by_table, progress=partial(shown, "batches"))
        divided = None if slots is None else split_slots(curves, slots)
        stream = {
            "trace_file": None if trace is None else str(trace),
            "data_dir": None if data_dir is None else str(data_dir),
            "scale": scale.value,
            "batch_size": opened.batch_size,
            "seed": seed,
        }
        environment = capture(threads=len(os.sched_getaffinity(0))).model_dump(mode="json")
        record = to_json(curves, divided, stream=stream, environment=environment)
        if as_json:
            typer.echo(record, nl=False)
        else:
            _show(curves, divided, ShownConsole(markup=False, highlight=False))
        if out is not None:
            write_atomically(out / "curves.json", record)
            tables = frames(curves, divided)
            for name, frame in tables.items():
                write_atomically(out / f"{name}.csv", csv_text(frame))
            errors.print(f"Wrote curves.json, {', '.join(f'{name}.csv' for name in tables)} to {out}")
        if torchrec is not None:
            inputs = planner_inputs(curves, batch_size=opened.batch_size, slots=slots, prefetch=prefetch)
            write_atomically(torchrec, inputs.model_dump_json())
            errors.print(f"Wrote {torchrec}")


def curve_sizes(curve: Curve) -> list[int]:
    """Sizes at which a curve is written: eight per doubling, the largest batch, all rows used, all rows."""
    doublings = np.arange(0, np.log2(curve.rows) + 1 / _PER_OCTAVE, 1 / _PER_OCTAVE)
    sizes = {*np.rint(2**doublings).astype(int).tolist(), curve.largest_batch, curve.used_rows, curve.rows}
    return sorted(size for size in sizes if 0 < size <= curve.rows)


def _points(curve: Curve) -> pd.DataFrame:
    sizes = curve_sizes(curve)
    return pd.DataFrame(
        {
            "slots": sizes,
            "unique_misses": [curve.misses(slots) for slots in sizes],
            "unique_miss_rate": [curve.miss_rate(slots) for slots in sizes],
            "holds_every_batch": [curve.holds(slots) for slots in sizes],
        }
    )


def frames(curves: Curves, split: SlotSplit | None) -> dict[str, pd.DataFrame]:
    """As data frames, by name: `curves`, of all tables and of each, and `split`."""
    points = {"all": _points(curves.pooled)} | {curve.name: _points(curve) for curve in curves.tables}
    made = {"curves": pd.concat(points, names=["table", None]).reset_index("table")}
    if split is not None:
        made["split"] = pd.DataFrame(
            {
                "table": [*split.cache_rows],
                "rows": [curve.rows for curve in curves.tables],
                "largest_batch": [curve.largest_batch for curve in curves.tables],
                "slots": [*split.cache_rows.values()],
                "unique_misses": split.misses,
            }
        )
    return made


def to_json(curves: Curves, split: SlotSplit | None, **more: object) -> str:
    """Everything as one JSON object; `more` goes in front."""
    counts = ("rows", "used_rows", "largest_batch", "unique_ids", "lookups")
    record = {
        **more,
        "trace": curves.pooled.name,
        "warmup_batches": curves.span.counted_from,
        "counted_batches": curves.batches,
        "curves": {
            name: {count: getattr(curve, count) for count in counts} | _points(curve).to_dict(orient="list")
            for name, curve in (("all", curves.pooled), *((curve.name, curve) for curve in curves.tables))
        },
        "split": split
        and {
            "slots": split.slots,
            "cache_rows": split.cache_rows,
            "unique_misses": sum(split.misses),
            "shared_unique_misses": split.shared_misses,
            "unused_slots": split.unused,
            "answer": split.answer,
        },
    }
    return json.dumps(record, indent=1) + "\n"


def _show(curves: Curves, split: SlotSplit | None, console: Console) -> None:
    """Print misses by the size of one cache for all tables, of each table's own, and how slots are divided."""
    curve = curves.pooled
    print_line(console, f"{curve.name}: {curve.rows:,} rows, {curve.used_rows:,} of them used")
    print_line(
        console,
        f"{curves.batches:,} batches counted after {curves.span.counted_from:,} of warm-up; the largest has "
        f"{curve.largest_batch:,} distinct rows",
    )
    print_line(console, "\nOne LRU cache for all tables", style="bold")
    sizes = {min(curve.rows, max(1, int(share * curve.rows))) for share in _SHARES}
    lines = [
        [
            f"{'' if curve.holds(slots) else '* '}{slots:,}",
            f"{100 * slots / curve.rows:.3g}",
            amount(curve.misses(slots) / curves.batches),
            f"{100 * curve.miss_rate(slots):.2f}",
        ]
        for slots in sorted({*sizes, max(1, curve.largest_batch), max(1, curve.used_rows)})
    ]
    print_table(console, ["slots", "% of\nrows", "misses\nper batch", "misses, % of\ndistinct"], lines, text=())
    if curves.tables:
        _show_tables(curves, console)
    if split is not None:
        _show_split(curves, split, console)
    print_line(console, _LEGEND, style="dim")


def _show_tables(curves: Curves, console: Console) -> None:
    print_line(console, "\nEach table with an LRU cache of its own: misses, % of distinct rows", style="bold")
    lines = []
    for curve in curves.tables:
        sizes = [max(1, int(share * curve.rows)) for share in _TABLE_SHARES]
        rates = [f"{'' if curve.holds(slots) else '*'}{100 * curve.miss_rate(slots):.2f}" for slots in sizes]
        counts = (f"{curve.rows:,}", f"{curve.largest_batch:,}", amount(curve.unique_ids / curves.batches))
        lines.append([curve.name, *counts, *rates])
    shares = [f"at {100 * share:g} %\nof rows" for share in _TABLE_SHARES]
    print_table(console, ["table", "rows", "largest\nbatch", "distinct\nper batch", *shares], lines)


def _show_split(curves: Curves, split: SlotSplit, console: Console) -> None:
    print_line(console, f"\n{split.slots:,} slots, {split.slots / curves.pooled.rows:.3%} of the rows", style="bold")
    made = frames(curves, split)["split"].drop(columns="largest_batch")
    whole = ["all, apart", *made.drop(columns="table").sum().tolist()]
    lines = [
        [name, f"{rows:,}", f"{slots:,}", amount(misses / curves.batches)]
        for name, rows, slots, misses in (*made.itertuples(index=False, name=None), whole)
    ]
    lines.append(["all, shared", "", f"{split.slots:,}", amount(split.shared_misses / curves.batches)])
    print_table(console, ["table", "rows", "slots", "misses\nper batch"], lines, sections=[len(curves.tables)])
    print_line(console, split.answer, style="bold")
    if split.unused:
        print_line(console, f"{split.unused:,} slots are left over: no row that was used needs them.")
    if not curves.pooled.holds(split.slots):
        print_line(console, "The shared cache cannot hold the largest batch: it misses more than this.")
    print_line(console, "\nFor CachedEmbeddingBagCollection, with policy lru:")
    print_line(console, f"cache_rows={pformat(split.cache_rows, sort_dicts=False)}")
