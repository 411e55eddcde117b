"""A description as figures: rank and frequency, shares, reuse distances, working sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullFormatter, NullLocator

from workloads.describe.description import ALL_TABLES, Description, TableFigures

FORMATS = ("svg", "png")
_LARGEST_TABLES = 5
# Okabe and Ito's colours, which stay apart for the colour-blind; dashes keep them apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_PERCENT = FuncFormatter(lambda share, _position: f"{100 * share:g} %")  # as many digits as it takes: 0.001 %
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def draw(description: Description, folder: Path) -> list[Path]:
    """Write every figure in every format, the same bytes for the same description.

    Args:
        description: What to draw.
        folder: A directory that exists.

    Returns:
        The files.
    """
    made = []
    look = mpl.rc_context(
        {
            "svg.hashsalt": "describe",
            "font.size": 9,
            "font.family": "DejaVu Sans",
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.linewidth": 0.6,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.5,
        }
    )
    with look:
        for name, plot in _PLOTS.items():
            figure = Figure(figsize=(6.4, 4.0), layout="constrained")
            axes = figure.subplots()
            plot(axes, description)
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
            for kind in FORMATS:
                path = folder / f"{name}.{kind}"
                metadata = {"Date": None, "Creator": None} if kind == "svg" else None
                figure.savefig(path, metadata=metadata, dpi=150)
                made.append(path)
    return made


def _rank_frequency(axes: Axes, description: Description) -> None:
    for table, style in _styled(description):
        axes.loglog([point.rank for point in table.curve], [point.accesses for point in table.curve], **style)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="rank of the id", ylabel="accesses", title=f"{description.dataset}: accesses by rank")
    axes.legend()


def _shares(axes: Axes, description: Description) -> None:
    for table, style in _styled(description):
        ids = [point.rank / table.distinct for point in table.curve]
        axes.semilogx(ids, [point.access_share for point in table.curve], **style)
    axes.set(xlabel="most frequent ids, share of the ids seen", ylabel="share of accesses", ylim=(0, 1.02))
    axes.set_title(f"{description.dataset}: accesses to the most frequent ids")
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.yaxis.set_major_formatter(_PERCENT)
    axes.legend()


def _reuse_distance(axes: Axes, description: Description) -> None:
    reuse = description.reuse[0]
    accesses = max(1, reuse.accesses)
    shares, hits, total = [], [], 0
    for row in reuse.bins:
        total += row.reuses
        shares.append(row.reuses / accesses)
        hits.append(total / accesses)
    ends = [row.highest + 1 for row in reuse.bins]
    # Distance 0 has no place on a log axis: each bin is drawn from one more than its lowest distance.
    lows = [row.lowest + 1 for row in reuse.bins]
    widths = [high + 1 - low for low, high in zip(lows, ends, strict=True)]
    axes.bar(lows, shares, widths, align="edge", color=_COLOURS[0], edgecolor="white", linewidth=0.5, label="accesses")
    axes.plot(ends, hits, color=_COLOURS[1], marker="o", markersize=3, label="LRU cache of so many rows: hit rate")
    axes.axhline(1 - reuse.first_accesses / accesses, color="black", linestyle=":", label="all reuses")
    _count_in_powers_of_two(axes, ends)
    axes.set(xlabel="reuse distance, distinct other rows (+ 1)", ylabel="share of accesses", ylim=(0, 1.02))
    axes.set_title(f"{description.dataset}: reuse distance, first {description.reuse_rows:,} training rows")
    axes.yaxis.set_major_formatter(_PERCENT)
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _working_set(axes: Axes, description: Description) -> None:
    batches = [window.batches for window in description.windows]
    distinct = [window.mean_distinct for window in description.windows]
    if batches:
        first = distinct[0]
        _count_in_powers_of_two(axes, batches)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.plot(batches, distinct, color=_COLOURS[0], marker="o", markersize=4, label="distinct rows, mean")
        linear = [first * count for count in batches]
        axes.plot(batches, linear, color="black", linestyle=":", label="if batches shared no row")
        axes.legend()
    axes.set(xlabel=f"consecutive batches of {description.batch_size:,}", ylabel="distinct rows, all tables")
    axes.set_title(f"{description.dataset}: working set")


_PLOTS: dict[str, Callable[[Axes, Description], None]] = {
    "rank_frequency": _rank_frequency,
    "shares": _shares,
    "reuse_distance": _reuse_distance,
    "working_set": _working_set,
}


def _count_in_powers_of_two(axes: Axes, counts: list[int]) -> None:
    """A log axis with a tick at every few of the counts, which are powers of two: 1, 8, 64, 512, 4 Ki, ..."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(count) for count in counts[:: 1 + len(counts) // 10]]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _position: _binary(round(count))))


def _binary(count: int) -> str:
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if count >= size:
            return f"{count // size} {unit}"
    return str(count)


def _styled(description: Description) -> list[tuple[TableFigures, dict[str, object]]]:
    """All tables together, and the few with most ids seen, each with its line."""
    pooled, *tables = description.tables
    largest = sorted(tables, key=lambda table: -table.distinct)[:_LARGEST_TABLES]
    lines = [(pooled, {"color": "black", "linewidth": 2.0, "label": ALL_TABLES})]
    for table, colour, dashes in zip(largest, _COLOURS, _DASHES, strict=False):
        lines.append((table, {"color": colour, "linestyle": dashes, "linewidth": 1.2, "label": table.table}))
    return lines
