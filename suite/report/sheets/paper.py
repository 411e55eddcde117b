"""The paper's table (arXiv 2208.05321): dataset by method, our rows beside the published ones."""

from collections.abc import Callable, Sequence

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.records.status import Status
from suite.tables.columns import PAPER, SYSTEM
from suite.tables.comparison import numbers
from suite.tables.quantities import duration
from suite.tables.rows import Row, merged_rows, remarks
from suite.tables.settings import cache_size, facts, headings, on_drive
from suite.tables.sheet import SETTING_COLUMNS, Block, Sheet, block, field, raw_frame

_LEGEND = (
    "Columns are those of the paper's own table, arXiv 2208.05321.",
    "A row is measured (by this suite, on the hardware named) or published (by others, on theirs); no number of one is "
    "comparable with the other unless hardware, batch and cache are the same.",
    "Measured rows: GB = 1e9 bytes; it/s: of turns with the other systems; epoch time: its samples at that speed; "
    "GPU GB: torch's peaks; CPU GB: peak resident memory of the process; n/a = does not exist or is not known.",
)
_PUBLISHED: dict[str, Callable[[PublishedRow], str]] = {
    "system": lambda row: row.system,
    "AUROC": lambda row: str(row.auroc),
    "accuracy": lambda row: str(row.accuracy),
    "it/s": lambda row: f"{row.steps_per_s:g}",
    # The source gives whole seconds below an hour.
    "epoch time": lambda row: duration(row.epoch_s) if row.epoch_s >= 60 else f"{row.epoch_s:g}s",
    "GPU GB allocated": lambda row: f"{row.gpu_allocated_gb:g}",
    "GPU GB reserved": lambda row: f"{row.gpu_reserved_gb:g}",
    "CPU GB": lambda row: f"{row.cpu_gb:g}",
    "row is": lambda row: "published",
    "hardware": lambda row: row.hardware,
    "batch": lambda row: f"{row.batch_size:,}",
    "cache ratio or budget": lambda row: f"{100 * row.cache_ratio:g} %",
}
"""Cells by column as the source prints them, every digit."""
_COLUMNS = (
    field("system", "system", text=True),
    *(field(column.words, column.words) for column in PAPER),
    field("row is", "row is", text=True),
    field("hardware", "hardware", text=True),
    field("batch", "batch"),
    field("cache ratio or budget", "cache ratio or budget"),
)
_RAW = (*SETTING_COLUMNS, "system", *(column.field for column in PAPER), "verified", "status")


def paper_sheet(groups: Sequence[Group]) -> Sheet:
    """A block per dataset, setting and machine; the published rows of the dataset at the end of each.

    The paper has no rows on a drive, and neither has its layout.
    """
    groups = [group for group in groups if not on_drive(group)]
    workloads = dict.fromkeys(group.cell.workload for group in groups)
    theirs = [_published_numbers(row) for name in workloads for row in published_rows(name)]
    ours = [line for line in numbers(groups) if not line["again"]]
    return Sheet(
        name="paper",
        title="Dataset by method, in the paper's layout",
        legend=_LEGEND,
        blocks=tuple(_block(group, heading) for group, heading in zip(groups, headings(groups), strict=True)),
        frame=raw_frame([*ours, *theirs]).reindex(columns=list(_RAW)),
    )


def _block(group: Group, heading: str) -> Block:
    rows = [row for row in merged_rows(group) if not row.again]
    published = published_rows(group.cell.workload)
    said = remarks(rows)
    others = _published_notes(group, published) if published else ["The paper has no rows for this dataset."]
    return block(
        _COLUMNS,
        [
            *((_measured(group, row), row.records) for row in rows),
            *(({words: show(row) for words, show in _PUBLISHED.items()}, ()) for row in published),
        ],
        heading=heading,
        facts=facts([group]),
        notes={"Notes": (*said["Not measured"], *said["Notes"], *others)},
    )


def _measured(group: Group, row: Row) -> dict[str, str]:
    """Cells by column."""
    kind = "virtual device" if group.on_virtual_device else "measured"
    kind += ", not verified" if row.verified == "no" else ""
    return {
        **{column.words: column.show(row) for column in (SYSTEM, *PAPER)},
        "row is": kind if row.status is Status.OK else row.status.value,
        "hardware": f"{group.key.device}, CPU only" if group.on_cpu else group.key.device,
        "batch": f"{group.cell.batch_size:,}",
        "cache ratio or budget": cache_size(group.cell),
    }


def _published_notes(group: Group, rows: Sequence[PublishedRow]) -> list[str]:
    """Where published rows come from, and what does not compare with them."""
    found = [
        f"Source: {'; '.join(dict.fromkeys(row.source for row in rows))}; cache ratio {100 * rows[0].cache_ratio:g} %, "
        f"batch {rows[0].batch_size:,}.",
        NOTE,
    ]
    if group.cell.data == "synthetic":
        found.append(
            "Labels of synthetic data are not those of the dataset: do not compare AUROC and accuracy with those of "
            "measured rows."
        )
    return found


def _published_numbers(row: PublishedRow) -> dict[str, object]:
    """A published row's setting, and what it says in SI units.

    Memory, printed in GB by a source that means GiB (see `suite.records.published.NOTE`), is converted to bytes.
    """
    same = ("workload", "batch_size", "cache_ratio", "source", "system", "auroc", "accuracy", "steps_per_s", "epoch_s")
    return {
        **{name: getattr(row, name) for name in same},
        "kind": "published",
        "data": "real",
        "device": row.gpu,
        "host": row.cpu,
        "device_allocated_bytes": round(row.gpu_allocated_gb * 2**30),
        "device_reserved_bytes": round(row.gpu_reserved_gb * 2**30),
        "host_peak_rss_bytes": round(row.cpu_gb * 2**30),
        "status": "published",
    }
