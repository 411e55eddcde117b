"""Statistics that `python -m workloads describe` prints: sizes, click rates and skew of a dataset's rows."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import Console

from workloads import DataError
from workloads.batch import Batch, Split
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.progress import Shown
from workloads.streams.synthetic import SyntheticWorkload

# torch tells of a function that torchrec calls for every batch; there is nothing to be done about it here
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

Ints = npt.NDArray[np.int64]
Source = PreparedWorkload | SyntheticWorkload

TOP_SHARES = (0.001, 0.01, 0.05, 0.1)
"""Shares of the ids seen whose accesses are summed."""
READ_ROWS = 2048
"""Rows read at a time; those of a synthetic stream come in batches of so many."""
ALL_TABLES = "all tables"


def describe_rows(folder: Path | None, synthetic: str | None, *, rows: int | None, seed: int, as_json: bool) -> None:
    """Print a description; arguments are the options of `python -m workloads describe`.

    Raises:
        DataError: an option is wrong, there is no such dataset or no row to read, or an id is outside its table.
    """
    if (folder is None) == (synthetic is None):
        raise DataError("name a prepared directory, or a stream with --synthetic NAME: one of the two")
    source: Source
    if folder is not None:
        found = find_prepared(folder)
        if len(found) > 1:
            raise DataError(f"{folder} holds several datasets: name one, {' or '.join(map(str, found.values()))}")
        source = PreparedWorkload.open(*found.values(), batch_size=1)
    elif rows is None:
        raise DataError(f"--synthetic {synthetic} needs --rows: a whole epoch is long, as in --rows 1000000")
    else:
        source = SyntheticWorkload.create(str(synthetic), batch_size=READ_ROWS, seed=seed)
    with Shown() as shown:
        tables = describe(source, rows=rows, shown=shown)
    if as_json:
        records = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
        Console(soft_wrap=True, markup=False, highlight=False).print(json.dumps(records))
    else:
        _show(source, tables)


def describe(source: Source, *, rows: int | None, shown: Shown) -> dict[str, pd.DataFrame]:
    """Read a dataset once, training first.

    Memory: about 8 B per row of all tables, and a batch.

    Args:
        source: Rows in the order of time.
        rows: Leading rows of each split to read; None: all.
        shown: Told of progress.

    Returns:
        `splits`, and `tables`: all together, then each. Shares are missing where they do not apply.

    Raises:
        DataError: there is no training row to read, or an id is outside its table.
    """
    counts = [np.zeros(count, np.int64) for _, count in source.tables]
    splits = []
    for split in Split:
        held = source.batches(split) * source.batch_size
        limit = held if rows is None else min(rows, held)
        samples = positives = accesses = unseen = 0
        for batch in _batches(source, split, limit):
            ids = [table.values().numpy() for table in batch.features.to_dict().values()]
            if split is Split.TRAIN:
                for found, seen in zip(ids, counts, strict=True):
                    np.add.at(seen, found, 1)
            else:
                unseen += sum(int(np.count_nonzero(seen[found] == 0)) for found, seen in zip(ids, counts, strict=True))
            accesses += sum(found.size for found in ids)
            samples += len(batch.labels)
            positives += int(batch.labels.sum())
            shown(f"reading {split}", samples, limit)
        if split is Split.TRAIN and not samples:
            raise DataError(f"{source.name}: no training row to read: raise --rows to at least {READ_ROWS:,}")
        splits.append(
            {
                "split": split.value,
                "rows": held,
                "rows_read": samples,
                "ctr": _share(positives, samples),
                "unseen_share": None if split is Split.TRAIN else _share(unseen, accesses),
            }
        )
    return {"splits": pd.DataFrame(splits), "tables": _tables(source.tables, counts)}


def _batches(source: Source, split: Split, limit: int) -> Iterator[Batch]:
    """The first `limit` rows of a split in order; a synthetic stream gives full batches only."""
    if isinstance(source, SyntheticWorkload):
        return (source.batch(index, split) for index in range(limit // READ_ROWS))
    return (source.rows(start, min(start + READ_ROWS, limit), split) for start in range(0, limit, READ_ROWS))


def _tables(tables: Sequence[tuple[str, int]], counts: Sequence[Ints]) -> pd.DataFrame:
    seen = [np.sort(accesses[accesses > 0])[::-1] for accesses in counts]
    named = [(name, rows, falling) for (name, rows), falling in zip(tables, seen, strict=True)]
    together = (ALL_TABLES, sum(rows for _, rows in tables), np.sort(np.concatenate(seen))[::-1])
    return pd.DataFrame(
        [
            {
                "table": name,
                "rows": rows,
                "accesses": int(falling.sum()),
                "distinct": falling.size,
                **{f"top_{100 * share:g}": _top_share(falling, share) for share in TOP_SHARES},
            }
            for name, rows, falling in (together, *named)
        ]
    )


def _top_share(falling: Ints, share: float) -> float | None:
    """Share of accesses to the most frequent of the ids seen, this share of them, rounded up; None without ids."""
    top = math.ceil(round(falling.size * share, 6))  # 0.1 * 30 is not quite 3
    return _share(int(falling[:top].sum()), int(falling.sum()))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _show(source: Source, found: Mapping[str, pd.DataFrame]) -> None:
    """Print a description within 80 columns."""
    console = Console(markup=False, highlight=False)
    tables = found["tables"].set_index("table")
    kind = "synthetic stream" if isinstance(source, SyntheticWorkload) else "prepared data"
    console.print(f"{source.name}: {kind}, {len(source.tables)} tables")

    def show(title: str, table: pd.DataFrame, note: str) -> None:
        text = table.map(_cell).rename(columns=lambda name: " " + name.replace("_", " "))  # pandas does so for cells
        console.print(f"\n{title}", style="bold")
        console.print(text.rename_axis(None).rename_axis(table.index.name, axis="columns").to_string(), soft_wrap=True)
        console.print(note, style="dim")

    unseen = "unseen: share of accesses to rows not accessed in the training rows read"
    show("Splits", found["splits"].set_index("split"), unseen)
    tops = [f"top_{100 * share:g}" for share in TOP_SHARES]
    show("Tables (training rows read)", tables.drop(columns=tops), "distinct: ids seen")
    top = "top: share of accesses to so many per cent of the ids seen, the most frequent, rounded up to whole ids"
    show("Skew (training rows read)", tables[tops], top)
    console.print("\nMisses of LRU caches of every size: python -m suite curves", soft_wrap=True)


def _cell(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "-"
    return f"{value:,}" if isinstance(value, int | np.integer) else f"{value:,.4f}"
