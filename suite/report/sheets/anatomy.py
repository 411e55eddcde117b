"""Where the bytes of every system lie and what they are for."""

from collections.abc import Sequence
from typing import Any

from suite.records.groups import Group
from suite.records.record import Record
from suite.tables.quantities import count, megabytes, percent
from suite.tables.rows import trusted
from suite.tables.settings import facts, headings
from suite.tables.sheet import Sheet, block, field, raw_frame, setting_numbers
from systems.answers import Purpose, Tier

_LEGEND = (
    "Bytes are a system's own account, the largest over rounds; what it does not list it does not have. "
    "MB = 1e6 bytes.",
    "Tiers: device (what computes), host (RAM), disk. Purposes: rows (weights), state (of the optimizer), index (where "
    "a row is, how often it is asked for), staging (rows on their way).",
)
_CPU = "On a CPU the device tier is RAM as well."
_COLUMNS = (
    field("system", "system", text=True),
    field("tier", "tier", text=True),
    field("purpose", "purpose", text=True),
    field("MB", "bytes", megabytes),
    field("bytes", "bytes", count),
    field("share of all", "share", lambda share: percent(share, 2)),
)


def anatomy_sheet(groups: Sequence[Group]) -> Sheet:
    """A block per group in which a system gave an account: bytes by system, tier and purpose."""
    blocks = []
    numbers: list[dict[str, object]] = []
    for group, heading in zip(groups, headings(groups), strict=True):
        rows = [(part, runs) for name, runs in group.rounds_by_system.items() for part in _parts(name, runs)]
        if rows:
            said = (*facts([group]), *((_CPU,) if group.on_cpu else ()))
            blocks.append(block(_COLUMNS, rows, heading=heading, facts=said))
            numbers += [setting_numbers(runs) | part for part, runs in rows]
    return Sheet(
        name="anatomy",
        title="Where the bytes lie and what they are for",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers),
    )


def _parts(system: str, runs: Sequence[Record]) -> list[dict[str, Any]]:
    """By tier and purpose as they are listed in the contract, then all of them together."""
    accounts = [measurement.memory.anatomy_bytes for measurement in trusted(runs)]
    sizes = {
        (tier.value, purpose.value): max(known)
        for tier in Tier
        for purpose in Purpose
        if (known := [one[key] for one in accounts if (key := f"{tier}/{purpose}") in one])
    }
    total = sum(sizes.values())
    if sizes:
        sizes["all", "all"] = total
    return [
        {"system": system, "tier": tier, "purpose": purpose, "bytes": size, "share": size / total if total else None}
        for (tier, purpose), size in sizes.items()
    ]
