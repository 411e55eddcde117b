"""What `describe` says of a dataset. Everything printed, written and drawn is taken from here."""

from pydantic import BaseModel, ConfigDict

from workloads.batch import DataKind

TOP_SHARES = (0.001, 0.01, 0.05, 0.1)
"""Shares of the ids seen whose accesses are summed."""
ALL_TABLES = "all tables"
"""Name of the figures over all tables."""


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitFigures(_Figures):
    """A split, of which the leading `rows_read` rows were read. None: not known, or it does not apply.

    Attributes:
        ctr: Share of positive labels.
        row_0_share: Share of accesses to row 0; None where row 0 is a row like any other.
        unseen_share: Share of accesses to rows not accessed in the training rows read; None for training.
    """

    split: str
    rows: int
    rows_read: int
    ctr: float | None
    row_0_share: float | None
    unseen_share: float | None


class TableFigures(_Figures):
    """Accesses of a table, or of all, in the training rows read.

    Attributes:
        distinct, seen_once: Different ids looked up, and those looked up exactly once.
        top_shares: Share of the accesses that go to the most frequent of the ids seen, by `TOP_SHARES`.
        zipf_exponent: See `Spectrum.zipf_exponent`.
        mean_length, longest, empty_share: Of bags: ids in the mean, ids at most, and bags without an id.
        curve: Some ranks, from 1 and evenly spaced on a log scale, each with the accesses of the id at that rank.
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
    """Distinct rows over all tables in full windows of so many consecutive batches.

    `unique_share` is distinct rows over accesses; None without accesses.
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
        row_0: What row 0 of every table stands for; None where it is a row like any other.
        batch_size: Samples per batch of the working sets.
        splits: In time order; `tables`: all together, then each; `windows`: shortest first, those that are full.
    """

    version: int = 2
    dataset: str
    kind: DataKind
    row_0: str | None
    batch_size: int
    splits: tuple[SplitFigures, ...]
    tables: tuple[TableFigures, ...]
    windows: tuple[WindowFigures, ...]
