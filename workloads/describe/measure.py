"""Measures a dataset in one pass over its rows, training first."""

from collections.abc import Callable, Sequence

import numpy as np

from workloads.batch import Split
from workloads.describe.dataset import RowSource
from workloads.describe.description import ALL_TABLES, TOP_SHARES, Description, SplitFigures, TableFigures
from workloads.describe.spectrum import Spectrum
from workloads.describe.working_set import WorkingSets
from workloads.errors import DataError
from workloads.frequency import Ints, add_accesses

Progress = Callable[[str, int, int], None]


def describe(
    source: RowSource,
    *,
    batch_size: int,
    rows: int | None = None,
    progress: Progress = lambda _stage, _done, _total: None,
) -> Description:
    """Measure a dataset.

    Memory: about 12 B per row of all tables, 40 B per batch, and a block of rows.

    Args:
        source: Where the rows come from.
        batch_size: Samples per batch of the working sets.
        rows: Leading rows of each split to read; default: all.
        progress: Called with a stage, the rows that it has done and the rows that it will do at most.

    Raises:
        DataError: a number is out of range, there is no training row to read, or the data are damaged.
    """
    for flag, number in (("--batch-size", batch_size), ("--rows", rows)):
        if number is not None and number < 1:
            raise DataError(f"{flag} {number}: must be at least 1")
    table_rows = [count for _, count in source.tables]
    limits = {split: count if rows is None else min(rows, count) for split, count in source.rows.items()}
    sets = WorkingSets(table_rows, batch_size=batch_size, samples=limits[Split.TRAIN])
    counts = [np.zeros(count, np.int64) for count in table_rows]
    totals = {split: _Totals(len(table_rows)) for split in Split}
    for split in Split:
        read = totals[split]
        for batch in source.read(split, limits[split]):
            for table, (bags, seen) in enumerate(zip(batch.features.to_dict().values(), counts, strict=True)):
                ids, offsets = bags.values().numpy(), bags.offsets().numpy()
                if split is Split.TRAIN:
                    add_accesses(ids, seen)
                    sets.access(table, ids, offsets, first_sample=read.samples)
                else:
                    read.unseen += int(np.count_nonzero(seen[ids] == 0))
                read.add_bags(table, ids, offsets)
            read.samples += len(batch.labels)
            read.positives += int(batch.labels.sum())
            progress(f"reading {split}", read.samples, limits[split])
        if totals[Split.TRAIN].samples == 0:
            raise DataError(f"{source.name}: no training row to read: raise --rows, or lower --batch-size")
    return Description(
        dataset=source.name,
        kind=source.kind,
        row_0=source.row_0,
        batch_size=batch_size,
        splits=tuple(_split_figures(source, split, read) for split, read in totals.items()),
        tables=_table_figures(source, totals[Split.TRAIN], counts),
        windows=sets.figures(),
    )


class _Totals:
    """Sums over the rows of a split; those by table are int64 `[tables]`."""

    def __init__(self, tables: int) -> None:
        self.samples = self.positives = self.unseen = 0
        self.accesses, self.row_0, self.empty, self.longest = np.zeros((4, tables), np.int64)

    def add_bags(self, table: int, ids: Ints, offsets: Ints) -> None:
        """Add the bags of one table in a block."""
        lengths = np.diff(offsets)
        self.accesses[table] += len(ids)
        self.row_0[table] += np.count_nonzero(ids == 0)
        self.empty[table] += np.count_nonzero(lengths == 0)
        self.longest[table] = max(self.longest[table], lengths.max(initial=0))


def _split_figures(source: RowSource, split: Split, totals: _Totals) -> SplitFigures:
    accesses = totals.accesses.sum()
    return SplitFigures(
        split=split,
        rows=source.rows[split],
        rows_read=totals.samples,
        ctr=_share(totals.positives, totals.samples),
        row_0_share=_share(totals.row_0.sum(), accesses) if source.row_0 is not None else None,
        unseen_share=_share(totals.unseen, accesses) if split is not Split.TRAIN else None,
    )


def _table_figures(source: RowSource, totals: _Totals, counts: Sequence[Ints]) -> tuple[TableFigures, ...]:
    """Figures of all tables, then of each."""
    spectra = [Spectrum.of(accesses) for accesses in counts]

    def figures(name: str, tables: list[int], spectrum: Spectrum) -> TableFigures:
        accesses, bags = int(totals.accesses[tables].sum()), totals.samples * len(tables)
        return TableFigures(
            table=name,
            rows=sum(source.tables[table][1] for table in tables),
            accesses=accesses,
            distinct=spectrum.distinct,
            seen_once=spectrum.seen_once,
            top_shares=tuple(spectrum.top_share(share) for share in TOP_SHARES),
            zipf_exponent=spectrum.zipf_exponent(),
            row_0_share=_share(totals.row_0[tables].sum(), accesses) if source.row_0 is not None else None,
            mean_length=accesses / bags,
            longest=int(totals.longest[tables].max()),
            empty_share=int(totals.empty[tables].sum()) / bags,
            curve=tuple(zip(*(column.tolist() for column in spectrum.curve()), strict=True)),
        )

    own = (figures(name, [number], spectra[number]) for number, (name, _) in enumerate(source.tables))
    return (figures(ALL_TABLES, list(range(len(spectra))), Spectrum.merged(spectra)), *own)


def _share(part: int | np.integer, whole: int | np.integer) -> float | None:
    return int(part) / int(whole) if whole else None
