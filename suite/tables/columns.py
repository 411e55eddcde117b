"""The columns of the comparison. A new column is one entry here: every format and the page show it.

A column reads a field of `suite.tables.rows.Row`; what is counted or measured anew is added there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from suite.records.published import PublishedRow
from suite.tables.quantities import (
    MISSING,
    amount,
    decimals,
    duration,
    gigabytes,
    megabytes,
    percent,
    score,
    with_decimals,
)
from suite.tables.rows import Row, noise_floor
from suite.tables.sheet import Column, Head
from suite.tables.statistics import Estimate


class Columns(StrEnum):
    """What a terminal shows: the columns of `View.MAIN`, or a second table with the rest as well."""

    MAIN = "main"
    ALL = "all"


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
        views: Where the page shows it besides `ALL`; those of `View.MAIN` are the table of README and terminal.
        noisy: Of a column that shows a speed: a row's cell under a noise floor (a share; None: not known).
    """

    field: str
    views: tuple[View, ...]
    definition: str
    noisy: Callable[[Row, float | None], str] | None = None

    def under(self, noise: float | None) -> Measured:
        """The column with no more digits than a noise floor allows."""
        noisy = self.noisy
        return self if noisy is None else replace(self, show=lambda row: noisy(row, noise))


def fitted(columns: Iterable[Measured], rows: Sequence[Row]) -> tuple[Measured, ...]:
    """The columns that have something to show of these rows, with the digits that their noise floor allows."""
    noise = noise_floor(rows)
    shown = [column.under(noise) for column in columns]
    return tuple(column for column in shown if any(column.show(row) != MISSING for row in rows))


def relative(ratio: Estimate | None, noise: float | None = None) -> str:
    """A ratio of speeds with its interval, in the digits that a noise floor allows."""
    if ratio is None:
        return MISSING
    places = decimals(ratio.value, noise)
    if ratio.low is None or ratio.high is None:
        return f"{with_decimals(ratio.value, places)} [{MISSING}]"
    low, high = (with_decimals(bound, places) for bound in (ratio.low, ratio.high))
    return f"{with_decimals(ratio.value, places)} [{low}, {high}]"


def _ratio(row: Row, noise: float | None) -> str:
    if row.computes_as is not None:
        return _same_as(row)
    if row.ratio is None:
        return MISSING
    if row.ratio_low is None and row.ratio == 1 and not row.again:
        return "1"
    return relative(row.relative, noise)


def _same_as(row: Row) -> str:
    return f"= {row.computes_as}"


def _word(value: object) -> str:
    return MISSING if value is None else str(value)


def _column(
    words: str, field: str, show: Callable[[Any], str], *views: View, definition: str, text: bool = False
) -> Measured:
    """A column whose cells show one field."""

    def shown(row: Row) -> str:
        return show(getattr(row, field))

    return Measured(words=words, field=field, show=shown, views=views, definition=definition, text=text)


def _noisy(
    words: str, field: str, noisy: Callable[[Row, float | None], str], *views: View, definition: str
) -> Measured:
    """A column of speeds, with as many digits as the noise floor allows."""
    plain = _column(words, field, str, *views, definition=definition)
    return replace(plain, show=lambda row: noisy(row, None), noisy=noisy)


SYSTEM: Column[Row] = Column(words="system", show=lambda row: row.system, text=True)
COLUMNS = (
    _column(
        "knew", "knew", _word, View.MAIN,
        definition="what the system knew of the ids.", text=True,
    ),
    _column(
        "AUROC", "auroc", score, View.MAIN, View.PAPER,
        definition="on the test split after training (torchmetrics), mean over rounds.",
    ),
    _column(
        "accuracy", "accuracy", score, View.PAPER,
        definition="on the test split after training (torchmetrics), mean over rounds.",
    ),
    _noisy(
        "it/s", "steps_per_s",
        lambda row, noise: amount(row.steps_per_s, noise) if row.computes_as is None else _same_as(row),
        View.MAIN, View.PAPER,
        definition="iterations per second: the baseline's geometric mean over turns, times the ratio.",
    ),
    _noisy(
        "total it/s", "total_steps_per_s", lambda row, noise: amount(row.total_steps_per_s, noise),
        definition="all timed iterations over all their seconds: stalls show here.",
    ),
    _noisy(
        "epoch time", "epoch_s",
        lambda row, noise: MISSING if row.epoch_s is None else f"~{duration(row.epoch_s, noise)}", View.PAPER,
        definition="samples of the training split over samples per second.",
    ),
    _noisy(
        "time to target AUROC", "target_s", lambda row, noise: duration(row.target_s, noise),
        definition="training time until the target AUROC was reached, at the system's speed; n/a: not reached.",
    ),
    replace(
        _noisy(
            "vs full_gpu", "ratio", _ratio, View.MAIN,
            definition="speed relative to the all-on-device baseline in the same turns, with a 95 % interval over "
            "builds.",
        ),
        breaks=True,
    ),
    _column(
        "GPU GB allocated", "device_allocated_bytes", gigabytes, View.PAPER, View.MEMORY,
        definition="torch's peak allocated during build and training; the largest of any round.",
    ),
    _column(
        "GPU GB reserved", "device_reserved_bytes", gigabytes, View.MAIN, View.PAPER, View.MEMORY,
        definition="torch's peak reserved, the largest of any round. UVM bypasses that allocator.",
    ),
    _column(
        "CPU GB", "host_peak_rss_bytes", gigabytes, View.MAIN, View.PAPER, View.MEMORY,
        definition="peak resident memory of the process, the largest of any round.",
    ),
    _column(
        "CPU GB net", "host_net_bytes", gigabytes, View.MEMORY,
        definition="the same less what was resident before the model was built.",
    ),
    _column(
        "hit rate", "hit_rate", lambda share: percent(share, 2), View.MAIN, View.TRAFFIC,
        definition="1 - unique misses / unique ids, before anything is fetched, in the first round's counted steps.",
    ),
    _column(
        "MB fetched per it", "fetched_bytes_per_step", megabytes, View.TRAFFIC,
        definition="rows fetched to the device times row bytes, optimizer state included, per iteration.",
    ),
    _column(
        "MB written back per it", "written_back_bytes_per_step", megabytes, View.TRAFFIC,
        definition="rows written back times row bytes, optimizer state included, per iteration.",
    ),
    _column(
        "waited, ms per it", "wait_s_per_step", lambda value: amount(None if value is None else 1e3 * value),
        View.TRAFFIC,
        definition="what the training thread waited for plans, for rows to be read and for rows to be written back, or "
        "took to do that itself, in the first round's counted steps.",
    ),
    _column(
        "misses, % of optimal", "misses_over_optimum", percent, View.MAIN, View.TRAFFIC,
        definition="unique misses relative to those of Belady's rule with as many slots in the same steps.",
    ),
    _column(
        "bytes over minimum", "bytes_over_minimum", amount, View.TRAFFIC,
        definition="bytes moved both ways relative to those of Belady's rule with as many slots in the same steps.",
    ),
    _column(
        "rows MB", "device_rows_bytes", megabytes, View.MEMORY,
        definition="device memory for rows, by the system's own account; on a CPU, RAM in the device's place.",
    ),
    _column(
        "state MB", "device_state_bytes", megabytes, View.MEMORY,
        definition="device memory for optimizer state, likewise.",
    ),
    _column(
        "index MB", "device_index_bytes", megabytes, View.MEMORY,
        definition="device memory for finding rows, likewise.",
    ),
    _column(
        "staging MB", "device_staging_bytes", megabytes, View.MEMORY,
        definition="device memory for rows on their way, likewise.",
    ),
    _column(
        "verified", "verified", _word,
        definition="trained beside the reference first: bitwise equal, or the largest difference of any loss, row or "
        "(relative to its size) optimizer state.",
        text=True,
    ),
    _column(
        "placement", "placement", _word,
        definition="where rows were, read off the live objects.", text=True,
    ),
    _column(
        "timed", "way", _word,
        definition="where the system took its turns.", text=True,
    ),
    _column(
        "status", "status", str, View.MAIN, View.PAPER,
        definition="how the system ended: the worst of its rounds.", text=True,
    ),
)  # fmt: skip

MAIN = tuple(column for column in COLUMNS if View.MAIN in column.views)
REST = tuple(column for column in COLUMNS if View.MAIN not in column.views)
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
