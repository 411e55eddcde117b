"""The columns of the comparison. A new column is one entry here: every format and the page show it.

A column reads a field of `suite.tables.rows.Row`; what is counted or measured anew is added there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from suite.tables.quantities import MISSING, amount, duration, gigabytes, megabytes, percent, relative, score
from suite.tables.rows import Row
from suite.tables.sheet import Column


class Columns(StrEnum):
    """What a terminal shows: the columns of `View.MAIN`, or a second table with the rest as well."""

    MAIN = "main"
    ALL = "all"


class View(StrEnum):
    """A choice of columns on the page; the first is the page's own choice, and `ALL` hides nothing."""

    MAIN = "main columns"
    PAPER = "the paper's columns"
    ALL = "all columns"


@dataclass(frozen=True, kw_only=True)
class Measured(Column[Row]):
    """A column of the comparison.

    Attributes:
        field: Of `Row`, in SI units: what the page sorts by.
        views: Where the page shows it besides `ALL`; those of `View.MAIN` are the table of README and terminal.
    """

    field: str
    views: tuple[View, ...] = ()
    definition: str


def _column(
    words: str, field: str, show: Callable[[Any], str], *views: View, definition: str, text: bool = False
) -> Measured:
    """A column whose cells show one field."""

    def shown(row: Row) -> str:
        return show(getattr(row, field))

    return Measured(words=words, field=field, show=shown, views=views, definition=definition, text=text)


def _ratio(row: Row) -> str:
    if row.computes_as is not None:
        return f"= {row.computes_as}"
    return "1" if row.ratio == 1 and row.ratio_low is None and not row.again else relative(row.relative, row.noise)


def _steps(row: Row) -> str:
    return amount(row.steps_per_s, row.noise) if row.computes_as is None else f"= {row.computes_as}"


def _word(value: object) -> str:
    return MISSING if value is None else str(value)


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
    Measured(
        words="it/s", field="steps_per_s", show=_steps, views=(View.MAIN, View.PAPER),
        definition="iterations per second: the baseline's geometric mean over turns, times the ratio.",
    ),
    Measured(
        words="total it/s", field="total_steps_per_s", show=lambda row: amount(row.total_steps_per_s, row.noise),
        definition="all timed iterations over all their seconds: stalls show here.",
    ),
    Measured(
        words="epoch time", field="epoch_s", views=(View.PAPER,),
        show=lambda row: MISSING if row.epoch_s is None else f"~{duration(row.epoch_s, row.noise)}",
        definition="samples of the training split over samples per second.",
    ),
    Measured(
        words="time to target AUROC", field="target_s", show=lambda row: duration(row.target_s, row.noise),
        definition="training time until the target AUROC was reached, at the system's speed; n/a: not reached.",
    ),
    Measured(
        words="vs full_gpu", field="ratio", show=_ratio, views=(View.MAIN,),
        definition="speed relative to the all-on-device baseline in the same turns, with a 95 % interval over builds.",
    ),
    _column(
        "GPU GB allocated", "device_allocated_bytes", gigabytes, View.PAPER,
        definition="torch's peak allocated during build and training; the largest of any round.",
    ),
    _column(
        "GPU GB reserved", "device_reserved_bytes", gigabytes, View.MAIN, View.PAPER,
        definition="torch's peak reserved, the largest of any round. UVM bypasses that allocator.",
    ),
    _column(
        "CPU GB", "host_peak_rss_bytes", gigabytes, View.MAIN, View.PAPER,
        definition="peak resident memory of the process, the largest of any round.",
    ),
    _column(
        "CPU GB net", "host_net_bytes", gigabytes,
        definition="the same less what was resident before the model was built.",
    ),
    _column(
        "hit rate", "hit_rate", lambda share: percent(share, 2), View.MAIN,
        definition="1 - unique misses / unique ids, before anything is fetched, in the first round's counted steps.",
    ),
    _column(
        "MB fetched per it", "fetched_bytes_per_step", megabytes,
        definition="rows fetched to the device times row bytes, optimizer state included, per iteration.",
    ),
    _column(
        "MB written back per it", "written_back_bytes_per_step", megabytes,
        definition="rows written back times row bytes, optimizer state included, per iteration.",
    ),
    _column(
        "waited, ms per it", "wait_s_per_step", lambda value: amount(None if value is None else 1e3 * value),
        definition="what the training thread waited for plans, for rows to be read and for rows to be written back, or "
        "took to do that itself, in the first round's counted steps.",
    ),
    _column(
        "misses, % of optimal", "misses_over_optimum", percent, View.MAIN,
        definition="unique misses relative to those of Belady's rule with as many slots in the same steps.",
    ),
    _column(
        "bytes over minimum", "bytes_over_minimum", amount,
        definition="bytes moved both ways relative to those of Belady's rule with as many slots in the same steps.",
    ),
    _column(
        "rows MB", "device_rows_bytes", megabytes,
        definition="device memory for rows, by the system's own account; on a CPU, RAM in the device's place.",
    ),
    _column(
        "state MB", "device_state_bytes", megabytes,
        definition="device memory for optimizer state, likewise.",
    ),
    _column(
        "index MB", "device_index_bytes", megabytes,
        definition="device memory for finding rows, likewise.",
    ),
    _column(
        "staging MB", "device_staging_bytes", megabytes,
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
