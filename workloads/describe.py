"""What `python -m workloads describe` prints: sizes, skew and working sets of a dataset's rows."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
from rich.console import Console

from workloads.batch import Batch, DataKind, Split
from workloads.compiled import compiled
from workloads.errors import DataError
from workloads.manifest import IdRule
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.progress import Shown
from workloads.streams.synthetic import SyntheticWorkload

# torch tells of a function that torchrec calls for every batch; there is nothing to be done about it here
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

Ints = npt.NDArray[np.int64]
Source = PreparedWorkload | SyntheticWorkload

TOP_SHARES = (0.001, 0.01, 0.05, 0.1)
"""Shares of the ids seen whose accesses are summed."""
WINDOWS = (1, 4, 16, 64)
"""Lengths of windows in batches; each is a multiple of the one before."""
ALL_TABLES = "all tables"

_BLOCK_ROWS = 1 << 16
_ROW_0 = {
    IdRule.RANK: "rare ids and ids not in the training split",
    IdRule.HASHED: "missing ids, and ids that hash to it",
}


def describe_rows(
    folder: Path | None, synthetic: str | None, *, batch_size: int, rows: int | None, seed: int, as_json: bool
) -> None:
    """Print a description; arguments are the options of `python -m workloads describe`. Raises what `describe` does."""
    source = _source(folder, synthetic, batch_size=batch_size, rows=rows, seed=seed)
    with Shown() as shown:
        tables = describe(source, batch_size=batch_size, rows=rows, shown=shown)
    if as_json:
        found = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
        Console(soft_wrap=True, markup=False, highlight=False).print(json.dumps(found))
    else:
        _show(source, tables, batch_size=batch_size)


def _source(folder: Path | None, synthetic: str | None, *, batch_size: int, rows: int | None, seed: int) -> Source:
    """The rows to describe. Raises `DataError`: an option is wrong, or there is no such dataset."""
    if (folder is None) == (synthetic is None):
        raise DataError("name a prepared directory, or a stream with --synthetic NAME: one of the two")
    for flag, number in (("--batch-size", batch_size), ("--rows", rows)):
        if number is not None and number < 1:
            raise DataError(f"{flag} {number}: must be at least 1")
    if folder is not None:
        found = find_prepared(folder)
        if len(found) > 1:
            raise DataError(f"{folder} holds several datasets: name one, {' or '.join(map(str, found.values()))}")
        return PreparedWorkload.open(*found.values(), batch_size=1)
    if rows is None:
        raise DataError(f"--synthetic {synthetic} needs --rows: a whole epoch is long, as in --rows 1000000")
    try:
        return SyntheticWorkload.create(str(synthetic), batch_size=batch_size, seed=seed)
    except ValueError as error:
        raise DataError(f"--synthetic {synthetic}: {error}") from error


def describe(source: Source, *, batch_size: int, rows: int | None, shown: Shown) -> dict[str, pd.DataFrame]:
    """Read a dataset once, training first.

    Memory: about 12 B per row of all tables, 40 B per batch, and a block of rows.

    Args:
        source: Rows in the order of time.
        batch_size: Samples per batch of the working sets.
        rows: Leading rows of each split to read; None: all.
        shown: Told of progress.

    Returns:
        `splits`, `tables` (all together, then each) and `windows`. Shares are missing where they do not apply.

    Raises:
        DataError: there is no training row to read, or an id is outside its table.
    """
    known_row_0 = isinstance(source, PreparedWorkload)
    counts = [np.zeros(count, np.int64) for _, count in source.tables]
    held = {split: source.batches(split) * source.batch_size for split in Split}
    limits = held if rows is None else {split: min(rows, count) for split, count in held.items()}
    sets = WorkingSets([count.size for count in counts], batch_size=batch_size, samples=limits[Split.TRAIN])
    splits, bags = [], _Bags(len(counts))
    for split in Split:
        samples = positives = accesses = row_0 = unseen = 0
        for batch in _batches(source, split, limits[split]):
            for table, (found, seen) in enumerate(zip(batch.features.to_dict().values(), counts, strict=True)):
                ids, offsets = found.values().numpy(), found.offsets().numpy()
                if split is Split.TRAIN:
                    np.add.at(seen, ids, 1)
                    sets.access(table, ids, offsets, first_sample=samples)
                    bags.add(table, np.diff(offsets))
                else:
                    unseen += int(np.count_nonzero(seen[ids] == 0))
                accesses += ids.size
                row_0 += int(np.count_nonzero(ids == 0))
            samples += len(batch.labels)
            positives += int(batch.labels.sum())
            shown(f"reading {split}", samples, limits[split], samples)
        if split is Split.TRAIN and not samples:
            raise DataError(f"{source.name}: no training row to read: raise --rows, or lower --batch-size")
        splits.append(
            {
                "split": split.value,
                "rows": held[split],
                "rows_read": samples,
                "ctr": _share(positives, samples),
                "row_0_share": _share(row_0, accesses) if known_row_0 else None,
                "unseen_share": None if split is Split.TRAIN else _share(unseen, accesses),
            }
        )
    tables = _tables(source.tables, counts, bags, row_0=known_row_0)
    return {"splits": pd.DataFrame(splits), "tables": tables, "windows": pd.DataFrame(sets.figures())}


def _batches(source: Source, split: Split, limit: int) -> Iterator[Batch]:
    """The first rows of a split in order, so many at most; full batches of a synthetic stream."""
    if isinstance(source, SyntheticWorkload):
        return (source.batch(index, split) for index in range(limit // source.batch_size))
    starts = range(0, limit, _BLOCK_ROWS)
    return (source.rows(start, min(start + _BLOCK_ROWS, limit), split) for start in starts)


class _Bags:
    """Bags of each table in the training rows: how many, how many of them empty, and the longest; int64 `[tables]`."""

    def __init__(self, tables: int) -> None:
        self.bags, self.empty, self.longest = np.zeros((3, tables), np.int64)

    def add(self, table: int, lengths: Ints) -> None:
        self.bags[table] += lengths.size
        self.empty[table] += np.count_nonzero(lengths == 0)
        self.longest[table] = max(self.longest[table], lengths.max(initial=0))


def _tables(tables: Sequence[tuple[str, int]], counts: Sequence[Ints], bags: _Bags, *, row_0: bool) -> pd.DataFrame:
    spectra = [spectrum(accesses) for accesses in counts]
    places = {ALL_TABLES: list(range(len(counts))), **{name: [place] for place, (name, _) in enumerate(tables)}}
    found = []
    for name, mine in places.items():
        merged = pl.concat([spectra[place] for place in mine]).group_by("accesses").sum().sort("accesses")
        accesses = int((merged["accesses"] * merged["ids"]).sum())
        distinct, samples = int(merged["ids"].sum()), int(bags.bags[mine].sum())
        found.append(
            {
                "table": name,
                "rows": sum(tables[place][1] for place in mine),
                "accesses": accesses,
                "distinct": distinct,
                "once": _share(int(merged.filter(pl.col("accesses") == 1)["ids"].sum()), distinct),
                "row_0_share": _share(sum(int(counts[place][0]) for place in mine), accesses) if row_0 else None,
                "mean_length": accesses / samples,
                "longest": int(bags.longest[mine].max()),
                "empty_share": int(bags.empty[mine].sum()) / samples,
                **{f"top_{100 * share:g}": top_share(merged, share) for share in TOP_SHARES},
            }
        )
    return pd.DataFrame(found)


def spectrum(counts: Ints) -> pl.DataFrame:
    """How many `ids` were accessed how often, of accesses per id, int64 `[rows]`; ids never accessed are left out."""
    found = pl.Series("accesses", counts).value_counts(name="ids").cast(pl.Int64)
    return found.filter(pl.col("accesses") > 0)


def top_share(found: pl.DataFrame, share: float) -> float | None:
    """Share of accesses to the most frequent ids, this share of the ids seen, rounded up; None without ids."""
    falling = found.sort("accesses", descending=True)
    accesses, ids = falling["accesses"].to_numpy(), falling["ids"].to_numpy()
    if not ids.size:
        return None
    top = math.ceil(round(int(ids.sum()) * share, 6))  # 0.1 * 30 is not quite 3
    taken = np.clip(top - (np.cumsum(ids) - ids), 0, ids)
    return int(taken @ accesses) / int(ids @ accesses)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class WorkingSets:
    """Distinct rows over all tables in windows of so many consecutive batches as `WINDOWS` says.

    The windows of one length are aligned and do not overlap, and only full windows count. Memory: 4 B per row and 40 B
    per batch.
    """

    def __init__(self, table_rows: Sequence[int], *, batch_size: int, samples: int) -> None:
        self._batch_size = batch_size
        self._accesses = np.zeros(samples // batch_size, np.int64)  # by batch
        self._distinct = np.zeros((len(WINDOWS), samples // batch_size), np.int64)  # by length and window
        self._last_batch = [np.full(rows, -1, np.int32) for rows in table_rows]

    def access(self, table: int, ids: Ints, offsets: Ints, *, first_sample: int) -> None:
        """Take the ids of some samples, from `first_sample` of the stream on, for the table of that number.

        `offsets`, int64 `[samples + 1]`, say where the ids of a sample begin.
        """
        samples = first_sample + np.arange(len(offsets) - 1)
        batches = np.repeat(samples // self._batch_size, np.diff(offsets))
        in_full_batches = np.searchsorted(batches, len(self._accesses))
        _mark(ids, batches[:in_full_batches], self._accesses, self._distinct, self._last_batch[table])

    def figures(self) -> list[dict[str, float | None]]:
        """The working sets so far, shortest windows first; only lengths of which the stream has a full window."""
        made: list[dict[str, float | None]] = []
        for length, by_window in zip(WINDOWS, self._distinct, strict=True):
            full = len(self._accesses) // length
            if full == 0:
                break
            distinct, accesses = by_window[:full], int(self._accesses[: full * length].sum())
            made.append(
                {
                    "batches": length,
                    "windows": full,
                    "mean_distinct": float(distinct.mean()),
                    "max_distinct": int(distinct.max()),
                    "unique_share": _share(int(distinct.sum()), accesses),
                }
            )
        return made


@compiled
def _mark(ids: Ints, batches: Ints, accesses: Ints, distinct: Ints, last_batch: npt.NDArray[np.int32]) -> None:
    """Count the accesses of one table, and its rows that are new in a window, onto those of other tables.

    A row is new in a window when its previous batch lies in an earlier one. The windows are nested: where a row is not
    new in one, it is not new in any longer one.

    `ids` are in the order of the stream, those without a batch last; `accesses` are int64 `[batches]`, `distinct` int64
    `[lengths, batches]`, and `last_batch` has the batch of each row's latest access, -1 for none.
    """
    for position in range(len(batches)):
        row, batch = ids[position], batches[position]
        previous = last_batch[row]
        last_batch[row] = batch
        accesses[batch] += 1
        for length in range(len(WINDOWS)):
            window = batch // WINDOWS[length]
            if previous // WINDOWS[length] == window:
                break
            distinct[length, window] += 1


_COUNT, _MEAN, _SHARE = "{:,}", "{:,.1f}", "{:.4f}"
_TOPS = {f"{100 * share:g} %": (f"top_{100 * share:g}", _SHARE) for share in TOP_SHARES}
_SPLITS = {
    "rows": ("rows", _COUNT),
    "rows read": ("rows_read", _COUNT),
    "CTR": ("ctr", _SHARE),
    "to row 0": ("row_0_share", _SHARE),
    "unseen": ("unseen_share", _SHARE),
}
_SIZES = {
    "rows": ("rows", _COUNT),
    "distinct": ("distinct", _COUNT),
    "once": ("once", _SHARE),
    "to row 0": ("row_0_share", _SHARE),
}
_LENGTHS = {
    "accesses": ("accesses", _COUNT),
    "ids/bag": ("mean_length", "{:.2f}"),
    "longest": ("longest", _COUNT),
    "empty": ("empty_share", _SHARE),
}
_SETS = {
    "windows": ("windows", _COUNT),
    "mean": ("mean_distinct", _MEAN),
    "max": ("max_distinct", _COUNT),
    "unique": ("unique_share", _SHARE),
}
"""Columns that are printed: heading, its name in the table, and its format."""


def _show(source: Source, found: Mapping[str, pd.DataFrame], *, batch_size: int) -> None:
    """Print a description within 80 columns."""
    console = Console(markup=False, highlight=False)
    splits, tables, windows = found["splits"], found["tables"].set_index("table"), found["windows"]
    kind = "synthetic stream" if source.kind is DataKind.SYNTHETIC else "prepared data"
    console.print(f"{source.name}: {kind}, {len(source.tables)} tables")

    def show(title: str, table: pd.DataFrame, columns: Mapping[str, tuple[str, str]], note: str) -> None:
        cells = {
            # pandas puts a space before cells, not headings
            f" {heading}": table[name].map(form.format, na_action="ignore")
            for heading, (name, form) in columns.items()
        }
        text = pd.DataFrame(cells).astype(object).fillna("-")
        console.print(f"\n{title}", style="bold")
        console.print(text.rename_axis(None).rename_axis(table.index.name, axis="columns").to_string(), soft_wrap=True)
        console.print(note, style="dim")

    row_0 = ""
    if isinstance(source, PreparedWorkload):
        row_0 = f"to row 0: share of accesses to row 0, for {_ROW_0[source.manifest.settings.ids]}; "
    unseen = "unseen: share of accesses to rows not accessed in the training rows read"
    show("Splits", splits.set_index("split"), _SPLITS, f"{row_0}{unseen}")
    show("Tables (training rows read)", tables, _SIZES, "distinct: ids seen; once: share of them seen once")
    if (tables["longest"] != 1).any() or tables["empty_share"].any():
        show("Bags (training rows read)", tables, _LENGTHS, "empty: share of the bags without an id")
    tops = "share of accesses to the most frequent ids: that percentage of the ids seen, rounded up to whole ids"
    show("Skew (training rows read)", tables, _TOPS, tops)
    if windows.empty:
        console.print(f"\nNo working set: the training rows read do not fill a batch of {batch_size:,}", soft_wrap=True)
    else:
        sets = f"distinct rows of all tables in full windows of so many batches of {batch_size:,}; unique: the same "
        show("Working set (training rows read)", windows.set_index("batches"), _SETS, f"{sets}over accesses")
    console.print("\nMisses of LRU caches of every size: python -m suite curves", soft_wrap=True)
