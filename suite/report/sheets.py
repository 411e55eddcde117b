"""The published sheets: the comparison, and the paper's layout of it with the published rows."""

from collections.abc import Sequence
from typing import Any, Final

from suite.records.groups import NOTE, PublishedRow, RecordGroup, published_rows
from suite.records.record import Status
from suite.tables.columns import PAPER, SYSTEM
from suite.tables.comparison import comparison
from suite.tables.formatting import count, duration
from suite.tables.rows import Row, merged_rows, remarks
from suite.tables.settings import cache_size, caption, headings, on_drive
from suite.tables.sheet import Column, ResultTable, Sheet


def sheets(groups: Sequence[RecordGroup]) -> tuple[Sheet, ...]:
    """The sheets of all groups in the order in which they are read: the comparison, and the paper's layout of it."""
    paper = paper_sheet(groups)
    return (comparison(groups), paper) if paper.tables else (comparison(groups),)


PAPER_COLUMNS: Final = (
    SYSTEM,
    *PAPER,
    Column(
        words="row is", name="row", text=True,
        definition="measured (by this suite, on the hardware named) or published (by others, on theirs); no "
        "number of one compares with the other unless hardware, batch and cache are the same.",
    ),
    Column(words="hardware", name="hardware", text=True),
    Column(words="batch", name="batch_size", show=count),
    Column(words="cache ratio or budget", name="size", text=True),
)  # fmt: skip


def paper_sheet(groups: Sequence[RecordGroup]) -> Sheet:
    """The paper's table (arXiv 2208.05321): a table per dataset, setting and machine, its published rows at the end.

    The paper has no rows on a drive, and neither has its layout.
    """
    groups = [group for group in groups if not on_drive(group)]
    tables = tuple(_paper_table(group, heading) for group, heading in zip(groups, headings(groups), strict=True))
    return Sheet(name="paper", title="Dataset by method, in the paper's layout (arXiv 2208.05321)", tables=tables)


def _paper_table(group: RecordGroup, heading: str) -> ResultTable:
    rows, published = merged_rows(group), published_rows(group.cell.workload)
    notes = [*remarks(rows), *([NOTE] if published else ["The paper has no rows for this dataset."])]
    if published and group.cell.data == "synthetic":
        notes.append("Labels of synthetic data are not the dataset's: do not compare published AUROC and accuracy.")
    return ResultTable(
        heading=heading,
        caption=caption([group]),
        columns=PAPER_COLUMNS,
        lines=(*(_measured(group, row) for row in rows), *map(_published, published)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _measured(group: RecordGroup, row: Row) -> dict[str, Any]:
    ended = ("virtual device" if group.on_virtual_device else "measured") + (
        ", not verified" if row.verified == "no" else ""
    )
    return {
        **row.line(),
        "row": ended if row.status is Status.OK else row.status.value,
        "hardware": f"{group.key.device}, CPU only" if group.on_cpu else group.key.device,
        "size": cache_size(group.cell),
    }


def _published(row: PublishedRow) -> dict[str, Any]:
    """A published row: raw numbers in SI units, and its cells as the source prints them, every digit.

    Memory, printed in GB by a source that means GiB (see `suite.records.groups.NOTE`), is converted to bytes.
    """
    same = ("workload", "batch_size", "cache_ratio", "source", "system", "auroc", "accuracy", "steps_per_s", "epoch_s")
    memory = {
        "device_allocated_bytes": row.gpu_allocated_gb,
        "device_reserved_bytes": row.gpu_reserved_gb,
        "host_peak_rss_bytes": row.cpu_gb,
    }
    return {
        **{name: getattr(row, name) for name in same},
        **{name: round(size * 2**30) for name, size in memory.items()},
        **{"kind": "published", "data": "real", "device": row.gpu, "host": row.cpu, "status": "published"},
        **{"row": "published", "hardware": row.hardware, "size": f"{100 * row.cache_ratio:g} %"},
        "printed": {
            **{name: f"{size:g}" for name, size in memory.items()},
            **{"auroc": str(row.auroc), "accuracy": str(row.accuracy), "steps_per_s": f"{row.steps_per_s:g}"},
            # the source gives whole seconds below an hour
            "epoch_s": duration(row.epoch_s) if row.epoch_s >= 60 else f"{row.epoch_s:g}s",
        },
    }
