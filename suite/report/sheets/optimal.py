"""How far every cache is from the optimum: misses and bytes relative to the least possible."""

from collections.abc import Sequence
from typing import Any

from suite.records.groups import Group
from suite.tables.quantities import MISSING, amount, count, megabytes, percent
from suite.tables.rows import Row, bytes_moved, counted_with_optimum, merged_rows
from suite.tables.settings import facts, headings
from suite.tables.sheet import Sheet, block, field, raw_frame, setting_numbers

_LEGEND = (
    "Optimal misses and minimum bytes: of Belady's rule, simulated on the same steps with as many slots; no cache can "
    "miss or move less.",
    "Unique misses: distinct rows of a batch that were not on the device, counted before anything was fetched; hit "
    "rate: the share of distinct rows that were. Bytes moved: fetched and written back, optimizer state included. "
    "MB = 1e6 bytes; n/a = does not exist or is not known.",
    "Counted while training, in the counted steps of the first round.",
)
_COLUMNS = (
    field("system", "system", text=True),
    field("cache ratio", "cache_ratio", lambda ratio: MISSING if ratio is None else f"{100 * ratio:g} %"),
    field("slots", "slots", count),
    field("steps", "steps", count),
    field("hit rate", "hit_rate", lambda share: percent(share, 2)),
    field("unique misses", "unique_misses", count),
    field("optimal misses", "optimal_unique_misses", count),
    field("misses, % of optimal", "misses_over_optimum", lambda share: percent(share, 1)),
    field("MB moved", "bytes_moved", megabytes),
    field("minimum MB", "minimum_bytes", megabytes),
    field("bytes over minimum", "bytes_over_minimum", amount),
)


def optimal_sheet(groups: Sequence[Group]) -> Sheet:
    """A block per group with a simulated optimum."""
    blocks = []
    numbers: list[dict[str, object]] = []
    for group, heading in zip(groups, headings(groups), strict=True):
        merged = [row for row in merged_rows(group) if not row.again and row.measured_rounds]
        rows = [(found, row.records) for row in merged if (found := _measured(row)) is not None]
        if rows:
            blocks.append(block(_COLUMNS, rows, heading=heading, facts=facts([group])))
            numbers += [setting_numbers(runs) | found for found, runs in rows]
    return Sheet(
        name="optimal",
        title="Distance to the optimal cache",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers),
    )


def _measured(row: Row) -> dict[str, Any] | None:
    """Of the round that was counted and has an optimum; None where there is no such round."""
    found = counted_with_optimum(row.records)
    if found is None:
        return None
    traffic, best = found
    return {
        "system": row.system,
        "cache_ratio": row.cell.cache_ratio,
        "slots": best.slots,
        "steps": traffic.steps,
        "hit_rate": row.hit_rate,
        "unique_misses": traffic.unique_misses,
        "optimal_unique_misses": best.unique_misses,
        "misses_over_optimum": row.misses_over_optimum,
        "bytes_moved": bytes_moved(traffic),
        "minimum_bytes": best.bytes_moved,
        "bytes_over_minimum": row.bytes_over_minimum,
    }
