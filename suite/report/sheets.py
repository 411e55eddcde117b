"""The published sheets beside the comparison: the paper's layout, where bytes are, and the distance to the optimum."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from suite.records.groups import NOTE, Group, PublishedRow, published_rows
from suite.records.record import Status
from suite.report.leaderboard import leaderboard_sheet
from suite.tables.approximate import approximate_sheet
from suite.tables.columns import BYTES_OVER_MINIMUM, HIT_RATE, MISSES, PAPER, SYSTEM, hit_rate
from suite.tables.comparison import line_of
from suite.tables.disk import disk_sheet
from suite.tables.formatting import count, duration, megabytes
from suite.tables.rows import Row, bytes_moved, counted_with_optimum, merged_rows, remarks
from suite.tables.settings import cache_size, caption, headings, on_drive
from suite.tables.sheet import Column, Sheet, Table
from systems.answers import MemoryUse, Tier

_OWN_ACCOUNT: Final = "by the system's own account, the largest over rounds; what it does not list it does not have."


def sheets(groups: Sequence[Group]) -> tuple[Sheet, ...]:
    """The sheets of all groups in the order in which they are read; one with nothing to show is left out."""
    return tuple(sheet for make in SHEETS if (sheet := make(groups)).tables)


def paper_sheet(groups: Sequence[Group]) -> Sheet:
    """The paper's table (arXiv 2208.05321): a table per dataset, setting and machine, its published rows at the end.

    The paper has no rows on a drive, and neither has its layout.
    """
    groups = [group for group in groups if not on_drive(group)]
    tables = tuple(_paper_table(group, heading) for group, heading in zip(groups, headings(groups), strict=True))
    return Sheet(name="paper", title="Dataset by method, in the paper's layout (arXiv 2208.05321)", tables=tables)


def _paper_table(group: Group, heading: str) -> Table:
    rows, published = merged_rows(group), published_rows(group.cell.workload)
    notes = [*remarks(rows), *([NOTE] if published else ["The paper has no rows for this dataset."])]
    if published and group.cell.data == "synthetic":
        notes.append("Labels of synthetic data are not the dataset's: do not compare published AUROC and accuracy.")
    return Table(
        heading=heading,
        caption=caption([group]),
        columns=(
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
        ),
        lines=(*(_measured(group, row) for row in rows), *map(_published, published)),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _measured(group: Group, row: Row) -> dict[str, Any]:
    line = line_of(row)
    ended = ("virtual device" if group.on_virtual_device else "measured") + (
        ", not verified" if row.verified == "no" else ""
    )
    own = ("noise", "same_kernel_as", "verified", "status", "system", *(column.name for column in PAPER))
    return {
        **row.line(),
        **{name: line[name] for name in own},
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


def anatomy_sheet(groups: Sequence[Group]) -> Sheet:
    """Bytes of every system by tier and purpose: a table per group in which a system gives an account."""
    columns = (
        SYSTEM,
        Column(words="tier", name="tier", text=True, definition="device (RAM on a CPU), host (RAM), disk."),
        Column(
            words="purpose", name="purpose", text=True,
            definition="rows (weights), state (of the optimizer), index (where a row is, how often it is asked for), "
            "staging (rows on their way).",
        ),
        Column(words="MB", name="bytes", show=megabytes, definition=_OWN_ACCOUNT),
        Column(words="bytes", name="bytes", show=count),
        Column(words="share of all", name="share", show=hit_rate),
    )  # fmt: skip
    return _sheet("anatomy", "Where the bytes lie and what they are for", groups, columns, _parts)


def _parts(row: Row) -> list[dict[str, Any]]:
    """Bytes by tier and purpose as they are listed in the contract, then all of them together."""
    accounts = [measurement.memory.anatomy_bytes for measurement in row.measurements]
    sizes = {
        (tier.value, purpose.value): max(known)
        for tier in Tier
        for purpose in MemoryUse
        if (known := [one[key] for one in accounts if (key := f"{tier}/{purpose}") in one])
    }
    total = sum(sizes.values())
    if sizes:
        sizes["all", "all"] = total
    return [
        {"tier": tier, "purpose": purpose, "bytes": size, "share": size / total if total else None}
        for (tier, purpose), size in sizes.items()
    ]


def optimal_sheet(groups: Sequence[Group]) -> Sheet:
    """Distance of every cache to the optimum: a table per group in which one was simulated."""
    columns = (
        SYSTEM,
        Column(words="cache ratio", name="cache_ratio", show=lambda ratio: f"{100 * ratio:g} %"),
        Column(words="slots", name="slots", show=count),
        Column(words="steps", name="steps", show=count, definition="counted while training, in the first round."),
        HIT_RATE,
        Column(
            words="unique misses", name="unique_misses", show=count,
            definition="distinct rows of a batch that were not on the device, before anything was fetched.",
        ),
        Column(
            words="optimal misses", name="optimal_unique_misses", show=count,
            definition="of Belady's rule, simulated on the same steps with as many slots; so are minimum MB.",
        ),
        MISSES,
        Column(
            words="MB moved", name="bytes_moved", show=megabytes,
            definition="fetched and written back, optimizer state included.",
        ),
        Column(words="minimum MB", name="minimum_bytes", show=megabytes),
        BYTES_OVER_MINIMUM,
    )  # fmt: skip
    return _sheet("optimal", "Distance to the optimal cache", groups, columns, _beside_optimum)


def _beside_optimum(row: Row) -> list[dict[str, Any]]:
    """The line of the round that was counted and has an optimum; nothing where there is no such round."""
    found = counted_with_optimum(row.records) if row.measured_rounds else None
    if found is None:
        return []
    traffic, best = found
    own = ("hit_rate", "misses_over_optimum", "bytes_over_minimum")
    return [
        {
            **{name: getattr(row, name) for name in own},
            **{"slots": best.slots, "steps": traffic.steps},
            **{"unique_misses": traffic.unique_misses, "optimal_unique_misses": best.unique_misses},
            **{"bytes_moved": bytes_moved(traffic), "minimum_bytes": best.bytes_moved},
        }
    ]


def _sheet(
    name: str, title: str, groups: Sequence[Group], columns: tuple[Column, ...], lines_of: Callable[[Row], list[Any]]
) -> Sheet:
    """A table per group of which a row has lines."""
    tables = []
    for group, heading in zip(groups, headings(groups), strict=True):
        lines = [{**row.line("system"), **line} for row in merged_rows(group) for line in lines_of(row)]
        if lines:
            tables.append(Table(heading=heading, caption=caption([group]), columns=columns, lines=tuple(lines)))
    return Sheet(name=name, title=title, tables=tuple(tables))


SHEETS: Final = (disk_sheet, paper_sheet, leaderboard_sheet, anatomy_sheet, optimal_sheet, approximate_sheet)
