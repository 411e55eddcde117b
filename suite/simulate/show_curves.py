"""Curves and splits: printed within 80 columns, as data frames, as one record, and as a figure."""

import json
from pathlib import Path
from pprint import pformat

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator
from rich.console import Console

from suite.simulate.curves import Curve, Curves
from suite.simulate.slots_by_table import Split
from suite.tables.figure_style import look
from suite.tables.quantities import amount
from suite.tables.terminal import print_line, print_table

_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_TABLE_SHARES = (0.01, 0.05, 0.2, 1.0)
_PER_OCTAVE = 8


def show(curves: Curves, split: Split | None, console: Console) -> None:
    """Print everything."""
    _show_pooled(curves, console)
    if curves.tables:
        _show_tables(curves, console)
    if split is not None:
        _show_split(curves, split, console)


def curve_sizes(curve: Curve) -> list[int]:
    """Sizes at which a curve is written and drawn: eight per doubling, the largest batch, all rows used, all rows."""
    doublings = np.arange(0, np.log2(curve.rows) + 1 / _PER_OCTAVE, 1 / _PER_OCTAVE)
    sizes = {*np.rint(2**doublings).astype(int).tolist(), curve.largest_batch, curve.used_rows, curve.rows}
    return sorted(size for size in sizes if 0 < size <= curve.rows)


def frames(curves: Curves, split: Split | None) -> dict[str, pd.DataFrame]:
    """As data frames, by name: `curves`, of all tables and of each, and `split`."""
    named = [("all", curves.pooled), *((curve.name, curve) for curve in curves.tables)]
    points = [{"table": name, **_point(curve, slots)} for name, curve in named for slots in curve_sizes(curve)]
    made = {"curves": pd.DataFrame(points)}
    if split is not None:
        made["split"] = pd.DataFrame(
            {
                "table": split.names,
                "rows": [curve.rows for curve in curves.tables],
                "largest_batch": [curve.largest_batch for curve in curves.tables],
                "slots": split.greedy.slots,
                "unique_misses": split.greedy.misses,
                "equal_share_slots": split.equal.slots,
                "equal_share_unique_misses": split.equal.misses,
            }
        )
    return made


def to_json(curves: Curves, split: Split | None, **more: object) -> str:
    """Everything as one JSON object; `more` goes in front."""
    made: dict[str, dict[str, object]] = {}
    for name, curve in [("all", curves.pooled), *((curve.name, curve) for curve in curves.tables)]:
        points = pd.DataFrame([_point(curve, slots) for slots in curve_sizes(curve)])
        made[name] = {
            "rows": curve.rows,
            "used_rows": curve.used_rows,
            "sampled_share": curve.share,
            "largest_batch": curve.largest_batch,
            "unique_ids": curve.unique_ids,
            "lookups": curve.lookups,
            **points.to_dict(orient="list"),
        }
    record = {
        **more,
        "trace": curves.trace,
        "warmup_batches": curves.span.counted_from,
        "counted_batches": curves.batches,
        "sample": curves.sample,
        "curves": made,
        "split": None if split is None else _split_record(split),
    }
    return json.dumps(record, indent=1) + "\n"


def _point(curve: Curve, slots: int) -> dict[str, object]:
    return {
        "slots": slots,
        "unique_misses": curve.misses(slots),
        "unique_miss_rate": curve.miss_rate(slots),
        "standard_error": curve.error(slots),
        "holds_every_batch": curve.holds(slots),
    }


def _split_record(split: Split) -> dict[str, object]:
    return {
        "slots": split.slots,
        "cache_rows": split.cache_rows(),
        "unique_misses": split.greedy.total_misses,
        "standard_error": split.greedy_error,
        "shared_unique_misses": split.shared_misses,
        "shared_standard_error": split.shared_error,
        "equal_share_cache_rows": dict(zip(split.names, split.equal.slots, strict=True)),
        "equal_share_unique_misses": split.equal.total_misses,
        "unused_slots": split.unused,
        "answer": split.answer,
    }


def _show_pooled(curves: Curves, console: Console) -> None:
    curve = curves.pooled
    how = "every row" if curves.sample is None else f"a sample of {curve.share:.2%} of the rows"
    print_line(console, f"{curves.trace}: {curve.rows:,} rows, {curve.used_rows:,} of them used, from {how}")
    print_line(console, f"{curves.batches:,} batches counted after {curves.span.counted_from:,} of warm-up")
    print_line(console, "\nOne LRU cache for all tables", style="bold")
    sizes = {min(curve.rows, max(1, int(share * curve.rows))) for share in _SHARES}
    sizes |= {size for size in (curve.largest_batch, curve.used_rows) if size}
    errors = ["error\n±"] if curves.sample is not None else []
    heads = ["slots", "% of\nrows", "misses\nper batch", *errors, "misses, % of\ndistinct"]
    lines = [
        [
            f"{'' if curve.holds(slots) else '* '}{slots:,}",
            f"{100 * slots / curve.rows:.3g}",
            amount(curve.misses(slots) / curves.batches),
            *(amount(curve.error(slots) / curves.batches) for _ in errors),
            f"{100 * curve.miss_rate(slots):.2f}",
        ]
        for slots in sorted(sizes)
    ]
    print_table(console, heads, lines, text=())
    about = "about " if curves.sample is not None else ""
    notes = [f"The largest batch has {about}{curve.largest_batch:,} distinct rows."]
    if not all(map(curve.holds, sizes)):
        notes.append("*: it does not fit into the cache, which misses more than this.")
    if errors:
        notes.append("error: standard error of the misses, by what the choice of the rows may change.")
    print_line(console, " ".join(notes), style="dim")


def _show_tables(curves: Curves, console: Console) -> None:
    print_line(console, "\nEach table with an LRU cache of its own", style="bold")
    shares = [f"at {100 * share:g} %\nof rows" for share in _TABLE_SHARES]
    heads = ["table", "rows", "largest\nbatch", "distinct\nper batch", *shares]
    lines = []
    for curve in curves.tables:
        sizes = [max(1, int(share * curve.rows)) for share in _TABLE_SHARES]
        rates = [f"{'' if curve.holds(slots) else '*'}{100 * curve.miss_rate(slots):.2f}" for slots in sizes]
        counts = (f"{curve.rows:,}", f"{curve.largest_batch:,}", amount(curve.unique_ids / curves.batches))
        lines.append([curve.name, *counts, *rates])
    print_table(console, heads, lines)
    starred = any(cell.startswith("*") for line in lines for cell in line[-len(shares) :])
    star = " *: the largest batch does not fit, the cache misses more than this." if starred else ""
    print_line(console, f"Misses in % of the distinct rows, with slots for so many rows.{star}", style="dim")


def _show_split(curves: Curves, split: Split, console: Console) -> None:
    print_line(console, f"\n{split.slots:,} slots, {split.slots / curves.pooled.rows:.3%} of the rows", style="bold")
    slots_of = ("slots where\nthey save most", "slots by\nequal share")
    heads = ["table", "rows", *(head for slots in slots_of for head in (slots, "misses\nper batch"))]
    lines = [[curve.name, f"{curve.rows:,}"] for curve in curves.tables]
    lines += [["all, apart", f"{curves.pooled.rows:,}"], ["all, shared", ""]]
    for division in (split.greedy, split.equal):
        for line, slots, misses in zip(lines, division.slots, division.misses, strict=False):
            line += [f"{slots:,}", amount(misses / curves.batches)]
        lines[-2] += [f"{sum(division.slots):,}", amount(division.total_misses / curves.batches)]
    lines[-1] += [f"{split.slots:,}", amount(split.shared_misses / curves.batches), "", ""]
    print_table(console, heads, lines, sections=[len(curves.tables)])
    print_line(console, split.answer, style="bold")
    if split.unused:
        print_line(console, f"{split.unused:,} slots are left over: no row that was used needs them.")
    if not curves.pooled.holds(split.slots):
        print_line(console, "The shared cache cannot hold the largest batch: it misses more than this.")
    print_line(console, "\nFor CachedEmbeddingBagCollection, with policy lru:")
    print_line(console, f"cache_rows={pformat(split.cache_rows(), sort_dicts=False)}")


FIGURE = "curves.svg"
# Okabe and Ito's colours, which stay apart for the colour-blind; dashes keep them apart without colour.
_UNIQUE, _SPLIT, _OVERFLOW = "#0072B2", "#009E73", "#BBBBBB"


def draw(curves: Curves, split: Split | None, folder: Path) -> Path:
    """Write the figure, the same bytes for the same curves, with the slots of a split marked. Returns the file."""
    with look("curves"):
        _pooled(curves, split).savefig(folder / FIGURE, metadata={"Date": None, "Creator": None})
    return folder / FIGURE


def _pooled(curves: Curves, split: Split | None) -> Figure:
    curve = curves.pooled
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    sizes = curve_sizes(curve)
    rates = np.array([100 * curve.miss_rate(slots) for slots in sizes])
    axes.plot(sizes, rates, color=_UNIQUE, label="of distinct rows")
    if curves.sample is not None:
        errors = np.array([200 * curve.error(slots) / max(1, curve.unique_ids) for slots in sizes])
        low, high = np.maximum(0, rates - errors), np.minimum(100, rates + errors)
        axes.fill_between(sizes, low, high, color=_UNIQUE, alpha=0.2, linewidth=0, label="± 2 standard errors")
    _frame(axes, curve)
    if split is not None:
        own = 100 * split.greedy.total_misses / max(1, curve.unique_ids)
        axes.plot(split.slots, own, "D", color=_SPLIT, label="tables apart, of distinct rows")
    axes.set(xlabel="slots of one LRU cache for all tables", ylabel="misses, %")
    axes.set_title(f"{curves.trace}: misses by cache size, {curves.batches:,} batches")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _frame(axes: Axes, curve: Curve) -> None:
    """Axes of slots and per cent; grey: the sizes into which the largest batch does not fit."""
    axes.set_xscale("log")
    axes.set_xlim(1, max(2, curve.rows))
    axes.set_ylim(0, 102)
    if curve.largest_batch > 1:
        label = "largest batch does not fit"
        axes.axvspan(1, curve.largest_batch, color=_OVERFLOW, alpha=0.35, linewidth=0, label=label)
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
