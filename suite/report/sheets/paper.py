"""The paper's table (arXiv 2208.05321): dataset by method, our rows beside the published ones."""

from __future__ import annotations

from suite.records.groups import Group
from suite.records.published import NOTE, PublishedRow, published_rows
from suite.records.status import Status
from suite.report.sheets.blocks import block_facts, cache_size, headings, record_keys, row_notes
from suite.report.sheets.sheet import Block, Head, Line, Sheet
from suite.report.source import Source
from suite.tables.frames import frame
from suite.tables.quantities import MISSING, amount, duration, gigabytes
from suite.tables.rows import Row, merged_rows

_HEADS = (
    Head(words="method", text=True),
    Head(words="AUROC"),
    Head(words="accuracy"),
    Head(words="throughput it/s"),
    Head(words="time per epoch"),
    Head(words="GPU memory allocated GB"),
    Head(words="GPU memory reserved GB"),
    Head(words="CPU memory GB"),
    Head(words="row is", text=True),
    Head(words="hardware", text=True),
    Head(words="batch"),
    Head(words="cache ratio or budget"),
)
_LEGEND = (
    "Columns are those of the paper's own table, arXiv 2208.05321.",
    "A row is measured (by this suite, on the hardware named) or published (by others, on theirs); no number of one is "
    "comparable with the other unless hardware, batch and cache are the same.",
    "Measured rows: GB = 1e9 bytes; it/s and time per epoch: median over rounds; ~ before a time: extrapolated from "
    "throughput; GPU memory: torch's peaks; CPU memory: peak resident memory of the process; n/a = does not exist or "
    "is not known.",
    NOTE,
)
_COLUMNS = (
    *("kind", "workload", "data", "scale", "device", "host", "threads", "optimizer", "lr", "eps", "batch_size"),
    *("embedding_dim", "max_rows", "cache_ratio", "device_budget_bytes", "seed", "setting", "source", "system"),
    *("auroc", "accuracy", "steps_per_s", "epoch_s", "epoch_measured", "device_allocated_bytes"),
    *("device_reserved_bytes", "host_peak_rss_bytes", "verified", "status"),
)


def paper_sheet(source: Source) -> Sheet | None:
    """A block per dataset, setting and machine; the published rows of the dataset at the end of each."""
    if not source.groups:
        return None
    return Sheet(
        name="paper",
        title="Dataset by method, in the paper's layout",
        legend=_LEGEND,
        blocks=tuple(
            _block(group, heading) for group, heading in zip(source.groups, headings(source.groups), strict=True)
        ),
        frame=frame(*source.groups, published=True)[list(_COLUMNS)],
    )


def _block(group: Group, heading: str) -> Block:
    rows, published = merged_rows(group), published_rows(group.cell.workload)
    measured = tuple(
        Line(cells=_measured(group, row), keys=record_keys(group.rounds_by_system[row.system])) for row in rows
    )
    return Block(
        heading=heading,
        facts=block_facts(group),
        heads=_HEADS,
        lines=(*measured, *(Line(cells=_published(row)) for row in published)),
        notes=(*(note for row in rows for note in row_notes(row)), *_published_notes(group, published)),
    )


def _measured(group: Group, row: Row) -> tuple[str, ...]:
    return (
        row.system,
        MISSING if row.auroc is None else f"{row.auroc:.5f}",
        MISSING if row.accuracy is None else f"{row.accuracy:.5f}",
        amount(row.steps_per_s),
        ("" if row.epoch_measured or row.epoch_s is None else "~") + duration(row.epoch_s),
        gigabytes(row.device_allocated_bytes),
        gigabytes(row.device_reserved_bytes),
        gigabytes(row.host_peak_rss_bytes),
        _kind(row),
        f"{group.key.device}, CPU only" if group.on_cpu else group.key.device,
        f"{group.cell.batch_size:,}",
        cache_size(group.cell.cache_ratio, group.cell.device_budget_bytes),
    )


def _kind(row: Row) -> str:
    if row.status is not Status.OK:
        return row.status.value
    return "measured, not verified" if row.verified == "no" else "measured"


def _published(row: PublishedRow) -> tuple[str, ...]:
    """As printed there, every digit."""
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
        "published",
        row.hardware,
        f"{row.batch_size:,}",
        cache_size(row.cache_ratio),
    )


def _published_notes(group: Group, rows: tuple[PublishedRow, ...]) -> tuple[str, ...]:
    if not rows:
        return ("The paper has no rows for this dataset.",)
    sources = dict.fromkeys(row.source for row in rows)
    notes = [f"Published rows: measured by others on other hardware; source: {'; '.join(sources)}."]
    if group.cell.data == "synthetic":
        notes.append(
            "Labels of synthetic data are not those of the dataset: AUROC and accuracy of measured rows do not compare "
            "with the published ones."
        )
    return tuple(notes)
