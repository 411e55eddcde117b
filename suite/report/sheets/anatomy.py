"""Where the bytes of every system lie and what they are for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.records.groups import Group
from suite.records.record import Cell, Record
from suite.records.status import Status
from suite.report.sheets.blocks import group_block, group_numbers
from suite.report.source import Source
from suite.tables.quantities import amount, count, megabytes, percent
from suite.tables.rows import trusted
from suite.tables.settings import headings
from suite.tables.sheet import Column, Sheet, raw_frame
from systems.answers import Purpose, Tier

_FLOAT_BYTES = 4
_ALL = "all"
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
TableKey = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Bytes of a system in a tier for a purpose, and their share of all. None: not known."""

    system: str
    tier: str
    purpose: str
    bytes: int
    share: float | None
    table_rows: int | None
    bytes_per_row: float | None
    slots: int | None
    bytes_per_slot: float | None


_COLUMNS: tuple[Column[_Part], ...] = (
    Column(words="system", show=lambda part: part.system, text=True),
    Column(words="tier", show=lambda part: part.tier, text=True),
    Column(words="purpose", show=lambda part: part.purpose, text=True),
    Column(words="MB", show=lambda part: megabytes(part.bytes)),
    Column(words="bytes", show=lambda part: count(part.bytes)),
    Column(words="share of all", show=lambda part: percent(part.share, 2)),
    Column(words="bytes per row of the table", show=lambda part: amount(part.bytes_per_row)),
    Column(words="bytes per slot", show=lambda part: amount(part.bytes_per_slot)),
)


def anatomy_sheet(source: Source) -> Sheet | None:
    """A block per group: bytes by system, tier and purpose; None where no system gave an account."""
    rows = table_rows(source.groups)
    blocks, numbers = [], []
    for group, heading in zip(source.groups, headings(source.groups), strict=True):
        known_rows = rows.get(_table(group.cell))
        found = {name: _parts(name, runs, known_rows) for name, runs in group.rounds_by_system.items()}
        parts = [part for of_system in found.values() for part in of_system]
        if not parts:
            continue
        facts = ((_CPU,) if group.on_cpu else ()) + (f"Rows of the whole table: {count(known_rows)}.",)
        without = [f"{name}: {_without_account(group.rounds_by_system[name])}" for name in found if not found[name]]
        blocks.append(group_block(group, heading, _COLUMNS, parts, more_facts=facts, remarks=without))
        numbers += group_numbers(group, parts)
    if not blocks:
        return None
    return Sheet(
        name="anatomy",
        title="Where the bytes lie and what they are for",
        legend=_LEGEND,
        blocks=tuple(blocks),
        frame=raw_frame(numbers),
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


def _parts(system: str, runs: Sequence[Record], rows: int | None) -> tuple[_Part, ...]:
    """By tier and purpose as they are listed in the contract, then all of them together."""
    sizes: dict[str, int] = {}
    for measurement in trusted(runs):
        for key, size in measurement.memory.anatomy_bytes.items():
            sizes[key] = max(size, sizes.get(key, 0))
    if not sizes:
        return ()
    total, slots = sum(sizes.values()), slots_of(runs)
    listed = [(tier, purpose, sizes.get(f"{tier}/{purpose}")) for tier in Tier for purpose in Purpose]
    return tuple(
        _Part(
            system=system,
            tier=tier,
            purpose=purpose,
            bytes=size,
            share=_per(size, total),
            table_rows=rows,
            bytes_per_row=_per(size, rows),
            slots=slots,
            bytes_per_slot=_per(size, slots),
        )
        for tier, purpose, size in (*listed, (_ALL, _ALL, total))
        if size is not None
    )


def _without_account(runs: Sequence[Record]) -> str:
    if trusted(runs):
        return "lists no bytes"
    return f"not measured, {'/'.join(sorted({run.status.value for run in runs if run.status is not Status.OK}))}"


def _per(size: int, number: int | None) -> float | None:
    return size / number if number else None
