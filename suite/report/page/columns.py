"""The columns of the page's main table: what each shows, sorts by and means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from suite.tables.rows import Row
from suite.tables.sections import COLUMNS, Column


class View(StrEnum):
    """A choice of columns; the first is the page's own choice, and `ALL` hides nothing."""

    MAIN = "main columns"
    PAPER = "the paper's columns"
    TRAFFIC = "traffic"
    MEMORY = "memory"
    PREDICTION = "prediction"
    ALL = "all columns"


@dataclass(frozen=True, kw_only=True)
class PageColumn:
    """A column of numbers or words about a row.

    Attributes:
        column: As in every other table.
        field: Of `suite.tables.rows.Row`, in SI units: what a column is sorted by.
        views: Where it is shown besides `ALL`.
        definition: What it means.
    """

    column: Column
    field: str
    views: tuple[View, ...]
    definition: str

    @property
    def header(self) -> str:
        """Its words."""
        return self.column.header

    @property
    def text(self) -> bool:
        """Whether it holds words."""
        return self.column.text

    def value(self, row: Row) -> float | str | None:
        """What a row is sorted by; None where there is no value."""
        value: float | str | None = getattr(row, self.field)
        return value


_MEANINGS: dict[str, tuple[str, tuple[View, ...], str]] = {
    "AUROC": (
        "auroc",
        (View.MAIN, View.PAPER),
        "On the test split after training, torchmetrics; median over rounds.",
    ),
    "accuracy": ("accuracy", (View.PAPER,), "On the test split after training, torchmetrics; median over rounds."),
    "it/s": (
        "steps_per_s",
        (View.MAIN, View.PAPER, View.PREDICTION),
        "Iterations (batches) per second: median over a round's timed windows, then over rounds.",
    ),
    "epoch time": (
        "epoch_s",
        (View.PAPER,),
        "Samples of the training split divided by samples per second; ~ where no whole epoch ran.",
    ),
    "GPU GB allocated": (
        "device_allocated_bytes",
        (View.PAPER, View.MEMORY),
        "torch's peak allocated during build and training, in 1e9 bytes; the largest of any round. n/a on a CPU.",
    ),
    "GPU GB reserved": (
        "device_reserved_bytes",
        (View.MAIN, View.PAPER, View.MEMORY),
        "torch's peak reserved, in 1e9 bytes; the largest of any round. UVM bypasses that allocator. n/a on a CPU.",
    ),
    "CPU GB": (
        "host_peak_rss_bytes",
        (View.MAIN, View.PAPER, View.MEMORY),
        "Peak resident memory of the process during build and training, in 1e9 bytes; the largest of any round.",
    ),
    "vs full_gpu": (
        "ratio",
        (View.MAIN,),
        "Samples per second relative to the all-on-device baseline, paired by round, with a 95 % interval "
        "(Student's t); one round has none.",
    ),
    "hit rate": (
        "hit_rate",
        (View.MAIN, View.TRAFFIC),
        "1 - unique misses / unique ids, before anything is fetched, summed over the counted steps of all rounds.",
    ),
    "MB fetched per it": (
        "fetched_bytes_per_step",
        (View.TRAFFIC,),
        "Rows fetched to the device times row bytes, optimizer state included, per iteration, in 1e6 bytes.",
    ),
    "MB written back per it": (
        "written_back_bytes_per_step",
        (View.TRAFFIC,),
        "Rows written back times row bytes, optimizer state included, per iteration, in 1e6 bytes.",
    ),
    "misses, % of optimal": (
        "misses_over_optimum",
        (View.MAIN, View.TRAFFIC),
        "Unique misses relative to those of Belady's rule, simulated on the same steps with as many slots: 100 % is "
        "the least possible for a cache that holds all rows of a batch.",
    ),
    "bytes over minimum": (
        "bytes_over_minimum",
        (View.TRAFFIC,),
        "Bytes moved both ways relative to those of Belady's rule, simulated on the same steps with as many slots.",
    ),
    "rows MB": (
        "device_rows_bytes",
        (View.MEMORY,),
        "Device memory for rows, by the system's own account, in 1e6 bytes; on a CPU, RAM in the device's place.",
    ),
    "state MB": ("device_state_bytes", (View.MEMORY,), "Device memory for optimizer state, likewise."),
    "index MB": ("device_index_bytes", (View.MEMORY,), "Device memory for finding rows, likewise."),
    "staging MB": ("device_staging_bytes", (View.MEMORY,), "Device memory for rows on their way, likewise."),
    "predicted it/s": (
        "predicted_steps_per_s",
        (View.PREDICTION,),
        "By a cost model that was calibrated before the cells ran: modelled, not measured.",
    ),
    "error of prediction": (
        "prediction_error",
        (View.PREDICTION,),
        "Of the predicted time of a step, relative to the measured one; positive where the model was too slow.",
    ),
    "verified": (
        "verified",
        (View.MAIN,),
        "Trained beside the reference before timing: bitwise equal, or the largest difference of any loss, row or "
        "(relative to its size) optimizer state.",
    ),
    "placement": ("placement", (View.MAIN,), "Where rows were, read off the live objects."),
    "status": ("status", (View.MAIN, View.PAPER), "How the cell ended: the worst of its rounds."),
}


def page_columns() -> tuple[PageColumn, ...]:
    """Every column of the published tables but the system's name, in their order."""
    made = []
    for column in COLUMNS[1:]:
        field, views, definition = _MEANINGS[column.header]
        made.append(PageColumn(column=column, field=field, views=views, definition=definition))
    return tuple(made)
