"""The columns of the comparison. A new column is one entry here: every format and the page show it.

A column reads a field of `suite.tables.rows.Row`; what is counted or measured anew is added there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from suite.records.published import PublishedRow
from suite.tables.quantities import MISSING, amount, duration, gigabytes, megabytes, percent, score
from suite.tables.rows import Row
from suite.tables.sheet import Column, Head
from suite.tables.statistics import Estimate


class View(StrEnum):
    """A choice of columns on the page; the first is the page's own choice, and `ALL` hides nothing."""

    MAIN = "main columns"
    PAPER = "the paper's columns"
    TRAFFIC = "traffic"
    MEMORY = "memory"
    ALL = "all columns"


@dataclass(frozen=True, kw_only=True)
class Measured(Column[Row]):
    """A column of the comparison.

    Attributes:
        field: Of `Row`, in SI units: what the page sorts by.
        views: Where the page shows it besides `ALL`.
        definition: What it means.
    """

    field: str
    views: tuple[View, ...]
    definition: str

    def value(self, row: Row) -> float | str | None:
        """What a row is sorted by; None where there is no value."""
        value: float | str | None = getattr(row, self.field)
        return value


def relative(ratio: Estimate | None) -> str:
    """A ratio of speeds with its interval."""
    if ratio is None:
        return MISSING
    interval = MISSING if ratio.low is None else f"{amount(ratio.low)}, {amount(ratio.high)}"
    return f"{amount(ratio.value)} [{interval}]"


def epoch(seconds: float | None, *, measured: bool | None) -> str:
    """The time of an epoch; `~` before one that is extrapolated from throughput."""
    return ("" if measured or seconds is None else "~") + duration(seconds)


def _relative(row: Row) -> str:
    if row.ratio is not None and row.ratio_low is None and row.ratio == 1:
        return "1"
    if row.ratio is None:
        return MISSING
    return relative(Estimate(value=row.ratio, low=row.ratio_low, high=row.ratio_high, rounds=row.rounds))


def _word(value: object) -> str:
    return MISSING if value is None else str(value)


def _column(
    words: str,
    field: str,
    show: Callable[[Any], str],
    *views: View,
    definition: str,
    text: bool = False,
) -> Measured:
    """A column whose cells show one field."""
    return Measured(
        words=words,
        field=field,
        show=lambda row: show(getattr(row, field)),
        views=views,
        definition=definition,
        text=text,
    )


SYSTEM: Column[Row] = Column(words="system", show=lambda row: row.system, text=True)
COLUMNS = (
    _column(
        "AUROC", "auroc", score, View.MAIN, View.PAPER,
        definition="On the test split after training, torchmetrics; median over rounds.",
    ),
    _column(
        "accuracy", "accuracy", score, View.PAPER,
        definition="On the test split after training, torchmetrics; median over rounds.",
    ),
    _column(
        "it/s", "steps_per_s", amount, View.MAIN, View.PAPER,
        definition="Iterations (batches) per second: median over a round's timed windows, then over rounds.",
    ),
    Measured(
        words="epoch time",
        field="epoch_s",
        show=lambda row: epoch(row.epoch_s, measured=row.epoch_measured),
        views=(View.PAPER,),
        definition="Samples of the training split divided by samples per second; ~ where no whole epoch ran.",
    ),
    _column(
        "GPU GB allocated", "device_allocated_bytes", gigabytes, View.PAPER, View.MEMORY,
        definition="torch's peak allocated during build and training, in 1e9 bytes; the largest of any round. n/a on a "
        "CPU.",
    ),
    _column(
        "GPU GB reserved", "device_reserved_bytes", gigabytes, View.MAIN, View.PAPER, View.MEMORY,
        definition="torch's peak reserved, in 1e9 bytes; the largest of any round. UVM bypasses that allocator. n/a on "
        "a CPU.",
    ),
    _column(
        "CPU GB", "host_peak_rss_bytes", gigabytes, View.MAIN, View.PAPER, View.MEMORY,
        definition="Peak resident memory of the process during build and training, in 1e9 bytes; the largest of any "
        "round.",
    ),
    Measured(
        words="vs full_gpu",
        field="ratio",
        show=_relative,
        views=(View.MAIN,),
        breaks=True,
        definition="Samples per second relative to the all-on-device baseline, paired by round, with a 95 % interval "
        "(Student's t); one round has none.",
    ),
    _column(
        "hit rate", "hit_rate", lambda share: percent(share, 2), View.MAIN, View.TRAFFIC,
        definition="1 - unique misses / unique ids, before anything is fetched, summed over the counted steps of all "
        "rounds.",
    ),
    _column(
        "MB fetched per it", "fetched_bytes_per_step", megabytes, View.TRAFFIC,
        definition="Rows fetched to the device times row bytes, optimizer state included, per iteration, in 1e6 bytes.",
    ),
    _column(
        "MB written back per it", "written_back_bytes_per_step", megabytes, View.TRAFFIC,
        definition="Rows written back times row bytes, optimizer state included, per iteration, in 1e6 bytes.",
    ),
    _column(
        "misses, % of optimal", "misses_over_optimum", percent, View.MAIN, View.TRAFFIC,
        definition="Unique misses relative to those of Belady's rule, simulated on the same steps with as many slots: "
        "100 % is the least possible for a cache that holds all rows of a batch.",
    ),
    _column(
        "bytes over minimum", "bytes_over_minimum", amount, View.TRAFFIC,
        definition="Bytes moved both ways relative to those of Belady's rule, simulated on the same steps with as many "
        "slots.",
    ),
    _column(
        "rows MB", "device_rows_bytes", megabytes, View.MEMORY,
        definition="Device memory for rows, by the system's own account, in 1e6 bytes; on a CPU, RAM in the device's "
        "place.",
    ),
    _column(
        "state MB", "device_state_bytes", megabytes, View.MEMORY,
        definition="Device memory for optimizer state, likewise.",
    ),
    _column(
        "index MB", "device_index_bytes", megabytes, View.MEMORY,
        definition="Device memory for finding rows, likewise.",
    ),
    _column(
        "staging MB", "device_staging_bytes", megabytes, View.MEMORY,
        definition="Device memory for rows on their way, likewise.",
    ),
    _column(
        "verified", "verified", _word, View.MAIN,
        definition="Trained beside the reference before timing: bitwise equal, or the largest difference of any loss, "
        "row or (relative to its size) optimizer state.",
        text=True,
    ),
    _column(
        "placement", "placement", _word, View.MAIN,
        definition="Where rows were, read off the live objects.", text=True,
    ),
    _column(
        "status", "status", str, View.MAIN, View.PAPER,
        definition="How the cell ended: the worst of its rounds.", text=True,
    ),
)  # fmt: skip

PAPER = tuple(column for column in COLUMNS if View.PAPER in column.views and column.words != "status")
"""The columns that the paper published (arXiv 2208.05321)."""
PUBLISHED_HEADS = (SYSTEM, *PAPER, Head(words="status", text=True, breaks=True), Head(words="hardware", text=True))


def published_cells(row: PublishedRow) -> tuple[str, ...]:
    """The system and the columns of `PAPER` as the source prints them, every digit."""
    return (
        row.system,
        str(row.auroc),
        str(row.accuracy),
        f"{row.steps_per_s:g}",
        # The source gives whole seconds below an hour.
        duration(row.epoch_s) if row.epoch_s >= 60 else f"{row.epoch_s:g}s",
        f"{row.gpu_allocated_gb:g}",
        f"{row.gpu_reserved_gb:g}",
        f"{row.cpu_gb:g}",
    )
