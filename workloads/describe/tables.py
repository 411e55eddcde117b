"""A description as tables: printed within 80 columns, or as data frames."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from workloads.batch import DataKind
from workloads.describe.description import (
    ALL_TABLES,
    REUSE_QUANTILES,
    TOP_SHARES,
    Description,
    ReuseFigures,
    TableFigures,
)

SHOWN_WINDOWS = (1, 4, 16, 64)
"""Window lengths in batches that are printed; files have all of them."""
_NAME_COLUMNS = 18
_NOTHING = "-"


@dataclass(frozen=True)
class _Section:
    title: str
    table: Table
    note: str


def show(description: Description, console: Console) -> None:
    """Print a description."""
    kind = "synthetic stream" if description.kind is DataKind.SYNTHETIC else "prepared data"
    console.print(f"{description.dataset}: {kind}, {len(description.tables) - 1} tables")
    for section in (
        _splits(description),
        _sizes(description),
        *([_bags(description)] if _has_bags(description) else []),
        _accesses(description),
        _working_sets(description),
        _reuse_by_table(description),
        _reuse_histogram(description.reuse[0], rows=description.reuse_rows),
    ):
        console.print(f"\n{section.title}", style="bold")
        console.print(section.table)
        console.print(section.note, style="dim")


def frames(description: Description) -> dict[str, pd.DataFrame]:
    """The same and more as data frames, by name: splits, tables, windows, reuse, reuse_bins, curves."""
    return {
        "splits": pd.DataFrame([split.model_dump() for split in description.splits]),
        "tables": pd.DataFrame([_table_record(table) for table in description.tables]),
        "windows": pd.DataFrame(
            [window.model_dump() for window in description.windows],
            columns=["batches", "windows", "mean_distinct", "max_distinct", "unique_share"],
        ),
        "reuse": pd.DataFrame([_reuse_record(reuse) for reuse in description.reuse]),
        "reuse_bins": pd.DataFrame(
            [{"table": reuse.table, **row.model_dump()} for reuse in description.reuse for row in reuse.bins],
            columns=["table", "lowest", "highest", "reuses"],
        ),
        "curves": pd.DataFrame(
            [{"table": table.table, **point.model_dump()} for table in description.tables for point in table.curve]
        ),
    }


def _table_record(table: TableFigures) -> dict[str, object]:
    record = table.model_dump(exclude={"curve", "top_shares"})
    names = [f"top_{_percent(share)}_percent" for share in TOP_SHARES]
    return record | dict(zip(names, table.top_shares, strict=True))


def _reuse_record(reuse: ReuseFigures) -> dict[str, object]:
    record = reuse.model_dump(exclude={"bins", "quantiles"})
    names = [f"p{_percent(share)}" for share in REUSE_QUANTILES]
    return record | dict(zip(names, reuse.quantiles, strict=True))


def _splits(description: Description) -> _Section:
    table = _table("split", "rows", "rows read", "CTR", "to row 0", "unseen", names=1)
    for split in description.splits:
        shares = (split.ctr, split.row_0_share, split.unseen_share)
        table.add_row(split.split, _count(split.rows), _count(split.rows_read), *map(_share, shares))
    row_0 = "" if description.row_0 is None else f"to row 0: share of accesses to row 0, for {description.row_0}; "
    return _Section("Splits", table, f"{row_0}unseen: share of accesses to rows not accessed in the training rows read")


def _sizes(description: Description) -> _Section:
    table = _table("table", "rows", "distinct", "once", "to row 0", "zipf", names=1)
    for figures in description.tables:
        once = figures.seen_once / figures.distinct if figures.distinct else None
        zipf = _NOTHING if figures.zipf_exponent is None else f"{figures.zipf_exponent:.2f}"
        counts = (_count(figures.rows), _count(figures.distinct))
        table.add_row(figures.table, *counts, _share(once), _share(figures.row_0_share), zipf)
    note = "distinct: ids seen; once: share of them seen once; zipf: fitted exponent of the ids seen twice or more"
    return _Section("Tables (training rows read)", table, note)


def _has_bags(description: Description) -> bool:
    return any(figures.longest != 1 or figures.empty_share for figures in description.tables)


def _bags(description: Description) -> _Section:
    table = _table("table", "accesses", "ids/bag", "longest", "empty", names=1)
    for figures in description.tables:
        lengths = (f"{figures.mean_length:.2f}", _count(figures.longest), _share(figures.empty_share))
        table.add_row(figures.table, _count(figures.accesses), *lengths)
    return _Section("Bags (training rows read)", table, "empty: share of the bags without an id")


def _accesses(description: Description) -> _Section:
    top = (f"{_percent(share)} %" for share in TOP_SHARES)
    table = _table("table", *top, "per batch", "unique", names=1)
    for figures in description.tables:
        distinct = _NOTHING if figures.batch_distinct is None else f"{figures.batch_distinct:,.1f}"
        shares = map(_share, figures.top_shares)
        table.add_row(figures.table, *shares, distinct, _share(figures.batch_unique_share))
    note = (
        "%: share of accesses to the most frequent ids, so many of the ids seen, rounded up; per batch: distinct ids "
        f"in a batch of {_count(description.batch_size)}, in the mean; unique: the same over accesses"
    )
    return _Section("Skew (training rows read)", table, note)


def _working_sets(description: Description) -> _Section:
    table = _table("batches", "windows", "mean", "max", "unique")
    shown = [window for window in description.windows if window.batches in SHOWN_WINDOWS]
    for window in shown:
        counts = (_count(window.batches), _count(window.windows))
        mean = f"{window.mean_distinct:,.1f}"
        table.add_row(*counts, mean, _count(window.max_distinct), _share(window.unique_share))
    size = _count(description.batch_size)
    note = (
        f"distinct rows of all tables in full windows of so many batches of {size}; unique: the same over accesses"
        if shown
        else f"the training rows read do not fill a batch of {size}: lower --batch-size"
    )
    return _Section("Working set (training rows read)", table, note)


def _reuse_by_table(description: Description) -> _Section:
    quantiles = (f"p{_percent(share)}" for share in REUSE_QUANTILES)
    table = _table("table", "first", *quantiles, names=1)
    for figures in description.reuse:
        first = figures.first_accesses / figures.accesses if figures.accesses else None
        distances = (_NOTHING if distance is None else _count(distance) for distance in figures.quantiles)
        table.add_row(figures.table, _share(first), *distances)
    note = (
        "distinct other rows between two accesses to a row, of one table or of all; first: share of accesses to rows "
        "not accessed before, which have no distance"
    )
    return _Section(f"Reuse distance (first {_count(description.reuse_rows)} training rows)", table, note)


def _reuse_histogram(reuse: ReuseFigures, *, rows: int) -> _Section:
    table = _table("distance", "accesses", "share", "LRU rows", "LRU hit rate")
    hits = 0
    for row in reuse.bins:
        hits += row.reuses
        distance = _count(row.lowest) if row.lowest == row.highest else f"{row.lowest:,} to {row.highest:,}"
        share, rate = _share(row.reuses / reuse.accesses), _share(hits / reuse.accesses)
        table.add_row(distance, _count(row.reuses), share, _count(row.highest + 1), rate)
    first = _share(reuse.first_accesses / reuse.accesses if reuse.accesses else None)
    table.add_row("first access", _count(reuse.first_accesses), first, "", "")
    title = f"Reuse distance over {ALL_TABLES} (first {_count(rows)} training rows)"
    return _Section(title, table, "LRU hit rate: hits per access of a cache of so many rows, empty at the start")


def _table(*columns: str, names: int = 0) -> Table:
    """A table whose first `names` columns hold names and whose other columns hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        named = number < names
        table.add_column(
            column,
            justify="left" if named else "right",
            no_wrap=True,
            overflow="ellipsis",
            max_width=_NAME_COLUMNS if named else None,
        )
    return table


def _count(number: int) -> str:
    return f"{number:,}"


def _share(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.4f}"


def _percent(share: float) -> str:
    return f"{100 * share:g}"
