"""What `describe` says of a dataset. Everything printed, written and drawn is taken from here."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from workloads.batch import DataKind

TOP_SHARES = (0.001, 0.01, 0.05, 0.1)
"""Shares of the ids seen whose accesses are summed."""
REUSE_QUANTILES = (0.5, 0.75, 0.9, 0.99)
ALL_TABLES = "all tables"
"""Name of the figures over all tables."""


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitFigures(_Figures):
    """A split.

    Attributes:
        split: Its name.
        rows: Rows that it has.
        rows_read: Leading rows that were read.
        ctr: Share of positive labels among them; None without rows.
        row_0_share: Share of their accesses that go to row 0; None where row 0 is a row like any other.
        unseen_share: Share of their accesses that go to rows not accessed in the training rows read.
    """

    split: str
    rows: int
    rows_read: int
    ctr: float | None
    row_0_share: float | None
    unseen_share: float | None


class CurvePoint(_Figures):
    """One rank, counted from 1.

    Attributes:
        rank: Ids by falling number of accesses.
        accesses: Accesses of the id at that rank.
        access_share: Share of all accesses that go to the ids up to that rank.
    """

    rank: int
    accesses: int
    access_share: float


class TableFigures(_Figures):
    """Accesses of a table in the training rows read.

    Attributes:
        table: Its name, or `ALL_TABLES`.
        rows: Rows of the table.
        accesses: Ids looked up.
        distinct: Different ids among them.
        seen_once: Ids looked up exactly once.
        top_shares: Share of the accesses that go to the most frequent of the ids seen, by `TOP_SHARES`.
        zipf_exponent: See `Spectrum.zipf_exponent`.
        row_0_share: Share of the accesses that go to row 0, as in `SplitFigures`.
        mean_length: Ids per bag.
        longest: Ids in the longest bag.
        empty_share: Share of the bags without an id.
        batch_distinct: Mean number of different ids in a batch; None where no batch is full.
        batch_unique_share: The same as a share of the accesses.
        curve: Some ranks, evenly spaced on a log scale.
    """

    table: str
    rows: int
    accesses: int
    distinct: int
    seen_once: int
    top_shares: tuple[float | None, ...]
    zipf_exponent: float | None
    row_0_share: float | None
    mean_length: float
    longest: int
    empty_share: float
    batch_distinct: float | None
    batch_unique_share: float | None
    curve: tuple[CurvePoint, ...]


class WindowFigures(_Figures):
    """Distinct rows over all tables in windows of consecutive batches.

    Attributes:
        batches: Batches per window.
        windows: Full windows in the training rows read.
        mean_distinct: Mean number of distinct rows.
        max_distinct: The largest.
        unique_share: Distinct rows over accesses.
    """

    batches: int
    windows: int
    mean_distinct: float
    max_distinct: int
    unique_share: float | None


class ReuseBin(_Figures):
    """Reuses whose distance is from `lowest` to `highest`, both included."""

    lowest: int
    highest: int
    reuses: int


class ReuseFigures(_Figures):
    """Reuse distances, in distinct other rows between two accesses to a row.

    Attributes:
        table: A table with a stack of its own, or `ALL_TABLES`: one stack for the rows of all tables.
        accesses: Accesses measured.
        first_accesses: Those that have no distance, for the row was not accessed before.
        quantiles: Distances that the shares `REUSE_QUANTILES` of the reuses do not exceed; None without reuses.
        bins: Reuses by powers of two.
    """

    table: str
    accesses: int
    first_accesses: int
    quantiles: tuple[int | None, ...]
    bins: tuple[ReuseBin, ...]


class Description(_Figures):
    """A dataset.

    Attributes:
        dataset: Its name.
        kind: Real or synthetic.
        row_0: What row 0 of every table stands for; None where it is a row like any other.
        batch_size: Samples per batch of the working sets.
        reuse_rows: Leading training rows whose reuse distances were measured.
        splits: In time order, training first.
        tables: All tables together, then each.
        windows: Working sets by window length, one batch first; empty where no batch is full.
        reuse: All tables together, then each.
    """

    version: int = 1
    dataset: str
    kind: DataKind
    row_0: str | None
    batch_size: int
    reuse_rows: int
    splits: tuple[SplitFigures, ...]
    tables: tuple[TableFigures, ...]
    windows: tuple[WindowFigures, ...]
    reuse: tuple[ReuseFigures, ...]
