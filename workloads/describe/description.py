"""What `describe` says of a dataset. Everything printed, written and drawn is taken from here."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from workloads.batch import DataKind

TOP_SHARES = (0.001, 0.01, 0.05, 0.1)
"""Shares of the ids seen whose accesses are summed."""
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
        unseen_share: Share of their accesses that go to rows not accessed in the training rows read; None for training.
    """

    split: str
    rows: int
    rows_read: int
    ctr: float | None
    row_0_share: float | None
    unseen_share: float | None


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
        curve: Some ranks, evenly spaced on a log scale, each with the accesses of the id at that rank. Rank 1 is the id
            with most accesses.
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
    curve: tuple[tuple[int, int], ...]


class WindowFigures(_Figures):
    """Distinct rows over all tables in windows of consecutive batches.

    Attributes:
        batches: Batches per window.
        windows: Full windows in the training rows read.
        mean_distinct: Mean number of distinct rows.
        max_distinct: The largest.
        unique_share: Distinct rows over accesses; None without accesses.
    """

    batches: int
    windows: int
    mean_distinct: float
    max_distinct: int
    unique_share: float | None


class Description(_Figures):
    """A dataset.

    Attributes:
        version: Of this layout.
        dataset: Its name.
        kind: Real or synthetic.
        row_0: What row 0 of every table stands for; None where it is a row like any other.
        batch_size: Samples per batch of the working sets.
        splits: In time order, training first.
        tables: All tables together, then each.
        windows: Working sets by window length, one batch first; without the lengths of which none is full.
    """

    version: int = 2
    dataset: str
    kind: DataKind
    row_0: str | None
    batch_size: int
    splits: tuple[SplitFigures, ...]
    tables: tuple[TableFigures, ...]
    windows: tuple[WindowFigures, ...]
