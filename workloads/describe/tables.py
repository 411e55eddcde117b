"""A description as tables: printed within 80 columns, or as a data frame."""

from collections.abc import Iterator

import pandas as pd
from rich.console import Console

from workloads.batch import DataKind
from workloads.describe.description import TOP_SHARES, Description

_TOPS = tuple(f"{100 * share:g}" for share in TOP_SHARES)
_COUNT, _MEAN, _SHARE = "{:,}", "{:,.1f}", "{:.4f}"


def show(description: Description, console: Console) -> None:
    """Print a description."""
    kind = "synthetic stream" if description.kind is DataKind.SYNTHETIC else "prepared data"
    console.print(f"{description.dataset}: {kind}, {len(description.tables) - 1} tables")
    for title, text, note in (_splits(description), *_tables(description), _working_sets(description)):
        console.print(f"\n{title}", style="bold")
        console.print(text, soft_wrap=True)
        console.print(note, style="dim")
    console.print("\nMisses of LRU caches of every size: python -m suite curves", soft_wrap=True)


def tables_frame(description: Description) -> pd.DataFrame:
    """The figures by table as a data frame: a row for all tables, then one for each."""
    records = []
    for table in description.tables:
        tops = {f"top_{top}_percent": share for top, share in zip(_TOPS, table.top_shares, strict=True)}
        records.append(table.model_dump(exclude={"curve", "top_shares"}) | tops)
    return pd.DataFrame(records)


def _splits(description: Description) -> tuple[str, str, str]:
    frame = pd.DataFrame([split.model_dump() for split in description.splits]).set_index("split")
    columns = {
        "rows": ("rows", _COUNT),
        "rows read": ("rows_read", _COUNT),
        "CTR": ("ctr", _SHARE),
        "to row 0": ("row_0_share", _SHARE),
        "unseen": ("unseen_share", _SHARE),
    }
    row_0 = "" if description.row_0 is None else f"to row 0: share of accesses to row 0, for {description.row_0}; "
    note = f"{row_0}unseen: share of accesses to rows not accessed in the training rows read"
    return "Splits", _text(frame, columns), note


def _tables(description: Description) -> Iterator[tuple[str, str, str]]:
    frame = tables_frame(description).set_index("table")
    frame["once"] = frame["seen_once"] / frame["distinct"]
    sizes = {
        "rows": ("rows", _COUNT),
        "distinct": ("distinct", _COUNT),
        "once": ("once", _SHARE),
        "to row 0": ("row_0_share", _SHARE),
        "zipf": ("zipf_exponent", "{:.2f}"),
    }
    note = "distinct: ids seen; once: share of them seen once; zipf: fitted exponent of the ids seen twice or more"
    yield "Tables (training rows read)", _text(frame, sizes), note
    if (frame["longest"] != 1).any() or frame["empty_share"].any():
        bags = {
            "accesses": ("accesses", _COUNT),
            "ids/bag": ("mean_length", "{:.2f}"),
            "longest": ("longest", _COUNT),
            "empty": ("empty_share", _SHARE),
        }
        yield "Bags (training rows read)", _text(frame, bags), "empty: share of the bags without an id"
    tops = {f"{top} %": (f"top_{top}_percent", _SHARE) for top in _TOPS}
    note = "share of accesses to the most frequent ids: that percentage of the ids seen, rounded up to whole ids"
    yield "Skew (training rows read)", _text(frame, tops), note


def _working_sets(description: Description) -> tuple[str, str, str]:
    title, size = "Working set (training rows read)", f"{description.batch_size:,}"
    if not description.windows:
        return title, "none", f"the training rows read do not fill a batch of {size}: lower --batch-size"
    frame = pd.DataFrame([window.model_dump() for window in description.windows]).set_index("batches")
    columns = {
        "windows": ("windows", _COUNT),
        "mean": ("mean_distinct", _MEAN),
        "max": ("max_distinct", _COUNT),
        "unique": ("unique_share", _SHARE),
    }
    note = f"distinct rows of all tables in full windows of so many batches of {size}; unique: the same over accesses"
    return title, _text(frame, columns), note


def _text(frame: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> str:
    """Columns of a frame as text, each given by its heading, its name in the frame and its format."""
    cells = {
        f" {heading}": frame[name].map(
            form.format, na_action="ignore"
        )  # pandas puts a space before cells, not headings
        for heading, (name, form) in columns.items()
    }
    shown = pd.DataFrame(cells).astype(object).fillna("-")
    return str(shown.rename_axis(None).rename_axis(frame.index.name, axis="columns").to_string())
