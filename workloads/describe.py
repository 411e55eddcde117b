"""Statistics that `python -m workloads describe` prints: sizes, click rates and skew of a dataset's rows."""

import json
import logging
import math
from collections.abc import Iterator, Sequence
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

    Memory: about 8 B per row of all tables, and a batch.

    Raises:
        DataError: an option is wrong, there is no such dataset or no row to read, or an id is outside its table.
    """
    source = _source(folder, synthetic, rows=rows, seed=seed)
    with Shown() as shown:
        splits, counts = _read(source, rows=rows, shown=shown)
    tables = _tables(source.tables, counts)
    if as_json:
        records = {n: json.loads(t.to_json(orient="records")) for n, t in (("splits", splits), ("tables", tables))}
        Console(soft_wrap=True, markup=False, highlight=False).print(json.dumps(records))
        return
    console = Console(markup=False, highlight=False)
    kind = "synthetic stream" if isinstance(source, SyntheticWorkload) else "prepared data"
    console.print(f"{source.name}: {kind}, {len(source.tables)} tables")
    tops = [f"top_{100 * share:g}" for share in TOP_SHARES]
    for title, table, note in (
        ("Splits", splits, "ctr: share of positive labels in the rows read"),
        ("Tables (training rows read)", tables.drop(columns=tops), "distinct: ids seen"),
        ("Skew (training rows read)", tables[["table", *tops]], "top: share of accesses to so many per cent of the ids "
         "seen, the most frequent, rounded up to whole ids"),
    ):  # fmt: skip
        console.print(f"\n{title}", style="bold")
        console.print(table.map(_cell).to_string(index=False), soft_wrap=True)
        console.print(note, style="dim")
    console.print("\nMisses of LRU caches of every size: python -m suite curves", soft_wrap=True)


def _source(folder: Path | None, synthetic: str | None, *, rows: int | None, seed: int) -> Source:
    if (folder is None) == (synthetic is None):
        raise DataError("name a prepared directory, or a stream with --synthetic NAME: one of the two")
    if folder is not None:
        found = find_prepared(folder)
        if len(found) > 1:
            raise DataError(f"{folder} holds several datasets: name one, {' or '.join(map(str, found.values()))}")
        return PreparedWorkload.open(*found.values(), batch_size=1)
    if rows is None:
        raise DataError(f"--synthetic {synthetic} needs --rows: a whole epoch is long, as in --rows 1000000")
    return SyntheticWorkload.create(str(synthetic), batch_size=READ_ROWS, seed=seed)


def _read(source: Source, *, rows: int | None, shown: Shown) -> tuple[pd.DataFrame, list[Ints]]:
    """The leading rows of every split, training first: what the splits hold, and the training accesses by row."""
    counts = [np.zeros(count, np.int64) for _, count in source.tables]
    splits = []
    for split in Split:
        held = source.batches(split) * source.batch_size
        limit = held if rows is None else min(rows, held)
        samples = positives = 0
        for batch in _batches(source, split, limit):
            if split is Split.TRAIN:
                for table, seen in zip(batch.features.to_dict().values(), counts, strict=True):
                    np.add.at(seen, table.values().numpy(), 1)
            samples += len(batch.labels)
            positives += int(batch.labels.sum())
            shown(f"reading {split}", samples, limit)
        if split is Split.TRAIN and not samples:
            raise DataError(f"{source.name}: no training row to read: raise --rows to at least {READ_ROWS:,}")
        splits.append((split.value, held, samples, _share(positives, samples)))
    return pd.DataFrame(splits, columns=["split", "rows", "rows_read", "ctr"]), counts


def _batches(source: Source, split: Split, limit: int) -> Iterator[Batch]:
    """The first `limit` rows of a split in order; a synthetic stream gives full batches only."""
    if isinstance(source, SyntheticWorkload):
        return (source.batch(index, split) for index in range(limit // READ_ROWS))
    return (source.rows(start, min(start + READ_ROWS, limit), split) for start in range(0, limit, READ_ROWS))


def _tables(tables: Sequence[tuple[str, int]], counts: Sequence[Ints]) -> pd.DataFrame:
    """Sizes and skew of all tables together, then of each."""
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


def _cell(value: str | float | None) -> str:
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return "-"
    return value if isinstance(value, str) else f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
