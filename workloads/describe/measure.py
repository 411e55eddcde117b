"""Measures a dataset in three passes: training rows, validation and test rows, leading training rows for reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from workloads.batch import Split
from workloads.describe.command import REUSE_ROWS
from workloads.describe.description import (
    ALL_TABLES,
    REUSE_QUANTILES,
    TOP_SHARES,
    CurvePoint,
    Description,
    ReuseBin,
    ReuseFigures,
    SplitFigures,
    TableFigures,
    WindowFigures,
)
from workloads.describe.loops import Ints
from workloads.describe.reuse import LruStack, ReuseHistogram
from workloads.describe.rows import Block, RowSource
from workloads.describe.spectrum import Spectrum
from workloads.describe.working_set import WindowCounts, WorkingSets
from workloads.errors import DataError
from workloads.frequency import add_accesses

Progress = Callable[[str, int, int], None]
_CURVE_POINTS = 120


def describe(
    source: RowSource,
    *,
    batch_size: int,
    rows: int | None = None,
    reuse_rows: int = REUSE_ROWS,
    progress: Progress = lambda _stage, _done, _total: None,
) -> Description:
    """Measure a dataset.

    Memory: about 12 B per row of all tables, 24 B per batch, and a block of rows.

    Args:
        source: Where the rows come from.
        batch_size: Samples per batch of the working sets.
        rows: Leading rows of each split to read; default: all.
        reuse_rows: Leading training rows whose reuse distances are measured.
        progress: Called with a stage, the rows that it has done and the rows that it will do at most.

    Raises:
        DataError: a number is out of range, there is no training row to read, or the data are damaged.
    """
    for flag, number in (("--batch-size", batch_size), ("--rows", rows), ("--reuse-rows", reuse_rows)):
        if number is not None and number < 1:
            raise DataError(f"{flag} {number}: must be at least 1")
    limit = max(map(source.samples, Split)) if rows is None else rows
    training, sets = _measure_training(source, limit=limit, batch_size=batch_size, progress=progress)
    splits = [_split_figures(source, Split.TRAIN, training, unseen=None)]
    for split in (Split.VALIDATION, Split.TEST):
        held_out, unseen = _Totals(len(source.tables)), 0
        for block in _reported(source, split, limit=limit, stage=f"reading {split}", progress=progress):
            held_out.add(block)
            unseen += training.unseen(block)
        splits.append(_split_figures(source, split, held_out, unseen=unseen))
    tables = _table_figures(source, training, sets)
    windows = tuple(_window_figures(window) for window in sets.counts())
    del training, sets  # their arrays make room for the stacks
    measured, reuse = _measure_reuse(source, limit=min(limit, reuse_rows), progress=progress)
    return Description(
        dataset=source.name,
        kind=source.kind,
        row_0=source.row_0,
        batch_size=batch_size,
        reuse_rows=measured,
        splits=tuple(splits),
        tables=tables,
        windows=windows,
        reuse=reuse,
    )


class _Totals:
    """Sums over the blocks of a split; those by table are int64 `[tables]`."""

    def __init__(self, tables: int) -> None:
        self.samples = self.positives = 0
        self.accesses, self.row_0, self.empty, self.longest = np.zeros((4, tables), np.int64)

    def add(self, block: Block) -> None:
        self.samples += block.samples
        self.positives += int(block.labels.sum())
        for table in range(len(self.accesses)):
            ids, offsets = block.table(table)
            lengths = np.diff(offsets)
            self.accesses[table] += len(ids)
            self.row_0[table] += np.count_nonzero(ids == 0)
            self.empty[table] += np.count_nonzero(lengths == 0)
            self.longest[table] = max(self.longest[table], lengths.max(initial=0))


class _TrainingTotals(_Totals):
    """The same with accesses per row, int64 `[rows]` by table."""

    def __init__(self, table_rows: Sequence[int]) -> None:
        super().__init__(len(table_rows))
        self.counts = [np.zeros(rows, np.int64) for rows in table_rows]

    def add(self, block: Block) -> None:
        super().add(block)
        for table, counts in enumerate(self.counts):
            add_accesses(block.table(table)[0], counts)

    def unseen(self, block: Block) -> int:
        """Accesses of another split's block to rows without an access here."""
        tables = enumerate(self.counts)
        return sum(int(np.count_nonzero(counts[block.table(table)[0]] == 0)) for table, counts in tables)


def _measure_training(
    source: RowSource, *, limit: int, batch_size: int, progress: Progress
) -> tuple[_TrainingTotals, WorkingSets]:
    table_rows = [rows for _, rows in source.tables]
    totals = _TrainingTotals(table_rows)
    sets = WorkingSets(table_rows, batch_size=batch_size, samples=min(limit, source.samples(Split.TRAIN)))
    for block in _reported(source, Split.TRAIN, limit=limit, stage="reading train", progress=progress):
        for table in range(len(table_rows)):
            ids, offsets = block.table(table)
            sets.access(table, ids, offsets, first_sample=totals.samples)
        totals.add(block)
    if totals.samples == 0:
        raise DataError(f"{source.name}: no training row to read: raise --rows, or lower --batch-size")
    return totals, sets


def _measure_reuse(source: RowSource, *, limit: int, progress: Progress) -> tuple[int, tuple[ReuseFigures, ...]]:
    """Rows measured, and figures of all tables, then of each."""
    table_rows = [rows for _, rows in source.tables]
    starts = np.cumsum([0, *table_rows[:-1]])
    shared, own = LruStack(sum(table_rows)), [LruStack(rows) for rows in table_rows]
    samples = 0
    for block in _reported(source, Split.TRAIN, limit=limit, stage="reuse distances", progress=progress):
        shared.access(block.rows(starts))
        for table, stack in enumerate(own):
            stack.access(block.table(table)[0])
        samples += block.samples
    names = (ALL_TABLES, *(name for name, _ in source.tables))
    stacks = zip(names, (shared, *own), strict=True)
    return samples, tuple(_reuse_figures(name, stack.histogram()) for name, stack in stacks)


def _reported(source: RowSource, split: Split, *, limit: int, stage: str, progress: Progress) -> Iterator[Block]:
    done, total = 0, min(limit, source.samples(split))
    for block in source.blocks(split, limit=limit):
        yield block
        done += block.samples
        progress(stage, done, total)


def _split_figures(source: RowSource, split: Split, totals: _Totals, *, unseen: int | None) -> SplitFigures:
    accesses = int(totals.accesses.sum())
    return SplitFigures(
        split=split,
        rows=source.samples(split),
        rows_read=totals.samples,
        ctr=_share(totals.positives, totals.samples),
        row_0_share=_share(totals.row_0.sum(), accesses) if source.row_0 is not None else None,
        unseen_share=None if unseen is None else _share(unseen, accesses),
    )


def _table_figures(source: RowSource, totals: _TrainingTotals, sets: WorkingSets) -> tuple[TableFigures, ...]:
    """Figures of all tables, then of each."""
    spectra = [Spectrum.of(counts) for counts in totals.counts]
    everything = np.arange(len(spectra))

    def figures(name: str, tables: Ints, spectrum: Spectrum) -> TableFigures:
        accesses, bags = int(totals.accesses[tables].sum()), totals.samples * len(tables)
        batch_distinct, batch_accesses = sets.by_table[tables].sum(axis=0)
        return TableFigures(
            table=name,
            rows=sum(source.tables[table][1] for table in tables),
            accesses=accesses,
            distinct=spectrum.distinct,
            seen_once=spectrum.singletons,
            top_shares=tuple(spectrum.top_share(share) for share in TOP_SHARES),
            zipf_exponent=spectrum.zipf_exponent(),
            row_0_share=_share(totals.row_0[tables].sum(), accesses) if source.row_0 is not None else None,
            mean_length=accesses / bags,
            longest=int(totals.longest[tables].max()),
            empty_share=int(totals.empty[tables].sum()) / bags,
            batch_distinct=_share(batch_distinct, sets.batches),
            batch_unique_share=_share(batch_distinct, batch_accesses),
            curve=_curve(spectrum),
        )

    own = (figures(name, everything[[n]], spectra[n]) for n, (name, _) in enumerate(source.tables))
    return (figures(ALL_TABLES, everything, Spectrum.merged(spectra)), *own)


def _curve(spectrum: Spectrum) -> tuple[CurvePoint, ...]:
    ranks = spectrum.log_ranks(_CURVE_POINTS)
    columns = zip(ranks, spectrum.frequency(ranks), spectrum.top_accesses(ranks), strict=True)
    total = spectrum.accesses
    return tuple(CurvePoint(rank=rank, accesses=one, access_share=int(top) / total) for rank, one, top in columns)


def _window_figures(window: WindowCounts) -> WindowFigures:
    return WindowFigures(
        batches=window.batches,
        windows=len(window.distinct),
        mean_distinct=float(window.distinct.mean()),
        max_distinct=int(window.distinct.max()),
        unique_share=_share(window.distinct.sum(), window.accesses),
    )


def _reuse_figures(name: str, histogram: ReuseHistogram) -> ReuseFigures:
    bins = histogram.by_powers_of_two()
    return ReuseFigures(
        table=name,
        accesses=histogram.accesses,
        first_accesses=histogram.first,
        quantiles=tuple(histogram.quantile(share) for share in REUSE_QUANTILES),
        bins=tuple(ReuseBin(lowest=low, highest=high, reuses=reuses) for low, high, reuses in bins),
    )


def _share(part: int | np.integer, whole: int | np.integer) -> float | None:
    return int(part) / int(whole) if whole else None
