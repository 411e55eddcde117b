"""Where the bytes of every system lie and what they are for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.record import Cell, Record
from suite.records.status import Status
from suite.report.sheets.blocks import (
    block_facts,
    count,
    headings,
    percent,
    raw_frame,
    record_keys,
    setting_numbers,
    trusted,
)
from suite.report.sheets.sheet import Block, Head, Line, Sheet
from suite.report.source import Source
from suite.tables.quantities import amount, megabytes
from systems.answers import Purpose, Tier

_FLOAT_BYTES = 4
_ALL = "all"
_HEADS = (
    Head(words="system", text=True),
    Head(words="tier", text=True),
    Head(words="purpose", text=True),
    Head(words="MB"),
    Head(words="bytes"),
    Head(words="share of all"),
    Head(words="bytes per row of the table"),
    Head(words="bytes per slot"),
)
_LEGEND = (
    "Bytes are a system's own account, the largest over rounds; what it does not list it does not have. "
    "MB = 1e6 bytes; n/a = not known.",
    "Tiers: device (what computes), host (RAM), disk. Purposes: rows (weights), state (of the optimizer), index (where "
    "a row is, how often it is asked for), staging (rows on their way).",
    "Rows of the whole table: read off systems that keep all of them in one tier of memory as 4-byte floats; n/a where "
    "no system does, or two disagree. A file on disk holds only rows that were written.",
    "Slots: rows that the device holds, as the optimum was simulated with; n/a for a system without a cache and where "
    "none was simulated.",
)
_CPU = "On a CPU the device tier is RAM as well."
_COLUMNS = {
    "system": "object",
    "tier": "object",
    "purpose": "object",
    "bytes": "Int64",
    "share": "Float64",
    "table_rows": "Int64",
    "bytes_per_row": "Float64",
    "slots": "Int64",
    "bytes_per_slot": "Float64",
}
TableKey = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Bytes of a system in a tier for a purpose."""

    tier: str
    purpose: str
    size: int
    share: float | None


def anatomy_sheet(source: Source) -> Sheet | None:
    """A block per group: bytes by system, tier and purpose; None where no system gave an account."""
    rows = table_rows(source.groups)
    blocks, numbers = [], []
    for group, heading in zip(source.groups, headings(source.groups), strict=True):
        found = {name: _parts(runs) for name, runs in group.rounds_by_system.items()}
        if not any(found.values()):
            continue
        known_rows = rows.get(_table(group.cell))
        blocks.append(_block(group, heading, found, known_rows))
        numbers += [_numbers(group, system, part, known_rows) for system, parts in found.items() for part in parts]
    if not blocks:
        return None
    return Sheet(
        name="anatomy",
        title="Where the bytes lie and what they are for",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers, _COLUMNS),
    )


def table_rows(groups: Iterable[Group]) -> dict[TableKey, int]:
    """Rows of all tables together, by what decides them, where all systems that can say say the same."""
    said: defaultdict[TableKey, set[int | None]] = defaultdict(set)
    for group in groups:
        row_bytes = _FLOAT_BYTES * group.cell.embedding_dim
        for runs in group.rounds_by_system.values():
            for measurement in trusted(runs):
                size = _whole_table_bytes(measurement.memory.anatomy_bytes, slots=slots_of(runs), row_bytes=row_bytes)
                if size:
                    said[_table(group.cell)].add(None if size % row_bytes else size // row_bytes)
    agreed = {table: found.pop() for table, found in said.items() if len(found) == 1}
    return {table: rows for table, rows in agreed.items() if rows is not None}


def slots_of(runs: Sequence[Record]) -> int | None:
    """Slots of a system's cache, where its rounds were compared with an optimum of so many."""
    found = {run.optimum.slots for run in runs if run.optimum is not None}
    return found.pop() if len(found) == 1 else None


def _whole_table_bytes(anatomy: Mapping[str, int], *, slots: int | None, row_bytes: int) -> int | None:
    """Bytes of the rows of all tables, where one tier holds each row once; None where that cannot be told."""
    rows = {tier: size for tier in Tier if (size := anatomy.get(f"{tier}/{Purpose.ROWS}"))}
    if slots is not None and rows.get(Tier.DEVICE) == slots * row_bytes:
        del rows[Tier.DEVICE]  # copies in a cache
    if len(rows) != 1 or Tier.DISK in rows:  # spread over tiers; or a file, which holds written rows only
        return None
    return next(iter(rows.values()))


def _table(cell: Cell) -> TableKey:
    return cell.workload, cell.data, cell.data_digest, cell.max_rows


def _parts(runs: Sequence[Record]) -> tuple[_Part, ...]:
    """By tier and purpose as they are listed in the contract, then all of them together."""
    sizes: dict[str, int] = {}
    for measurement in trusted(runs):
        for key, size in measurement.memory.anatomy_bytes.items():
            sizes[key] = max(size, sizes.get(key, 0))
    if not sizes:
        return ()
    total = sum(sizes.values())
    parts = [
        _Part(tier=tier, purpose=purpose, size=sizes[key], share=sizes[key] / total if total else None)
        for tier in Tier
        for purpose in Purpose
        if (key := f"{tier}/{purpose}") in sizes
    ]
    return (*parts, _Part(tier=_ALL, purpose=_ALL, size=total, share=1.0 if total else None))


def _block(group: Group, heading: str, found: dict[str, tuple[_Part, ...]], rows: int | None) -> Block:
    return Block(
        heading=heading,
        facts=(*block_facts(group), *((_CPU,) if group.on_cpu else ()), f"Rows of the whole table: {count(rows)}."),
        heads=_HEADS,
        lines=tuple(
            Line(
                cells=_cells(system, part, rows, slots_of(group.rounds_by_system[system])),
                keys=record_keys(group.rounds_by_system[system]),
            )
            for system, parts in found.items()
            for part in parts
        ),
        notes=tuple(
            f"{system}: {_without_account(group.rounds_by_system[system])}"
            for system, parts in found.items()
            if not parts
        ),
    )


def _without_account(runs: Sequence[Record]) -> str:
    if trusted(runs):
        return "lists no bytes"
    return f"not measured, {'/'.join(sorted({run.status.value for run in runs if run.status is not Status.OK}))}"


def _cells(system: str, part: _Part, rows: int | None, slots: int | None) -> tuple[str, ...]:
    return (
        system,
        part.tier,
        part.purpose,
        megabytes(part.size),
        count(part.size),
        percent(part.share, decimals=2),
        amount(_per(part.size, rows)),
        amount(_per(part.size, slots)),
    )


def _numbers(group: Group, system: str, part: _Part, rows: int | None) -> dict[str, object]:
    runs = group.rounds_by_system[system]
    slots = slots_of(runs)
    return setting_numbers(group, runs) | {
        "system": system,
        "tier": part.tier,
        "purpose": part.purpose,
        "bytes": part.size,
        "share": part.share,
        "table_rows": rows,
        "bytes_per_row": _per(part.size, rows),
        "slots": slots,
        "bytes_per_slot": _per(part.size, slots),
    }


def _per(size: int, number: int | None) -> float | None:
    return size / number if number else None
