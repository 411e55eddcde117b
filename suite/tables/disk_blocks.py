"""The tables of rows on a drive: per sweep of host budgets one of the whole step, and one of the embedding step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from suite.records.groups import IN_RAM, Group, base_name
from suite.records.record import Record
from suite.tables.columns import Columns, relative
from suite.tables.disk import FLOAT_BYTES, RIVALS, OnDrive, Step, drives_of, rows_on_drive, table_rows
from suite.tables.disk_verdict import sentences
from suite.tables.quantities import MISSING, amount, binary_bytes, count, gigabytes, percent, score
from suite.tables.rows import merged_rows
from suite.tables.settings import details, facts, family_headings
from suite.tables.sheet import Block, Column, lines, notes
from suite.tables.sweeps import on_drive, sweeps
from workloads.schema import SCHEMAS

TITLE = "Rows on a drive: speed within a host budget"
LEGEND = (
    "Budget: all that a system may keep in memory for rows, the page cache of its files included; KiB, MiB, GiB = "
    f"powers of 1024. {IN_RAM} keeps all rows in RAM, outside the budget: the line to reach.",
    "Memory held: the most that was in use beyond what training took without rows.",
    f"vs {IN_RAM}: speed relative to it in the same turns, with a 95 % interval over blocks of turns; vs another "
    f"system: the same, from turns with each other where they had some, else through their ratios to {IN_RAM}.",
    "Read and written: by the process from and to drives, in the timed turns; what the page cache answers is not "
    "read. Rows read: what the system asked of its file, whatever answered.",
    "Blocks read, of drive: bytes read over the size of the drive's measured reads, per second, as a share of the "
    "reads per second that it gives at depth 32, the median over cells. It understates reads smaller than a block, "
    "such as direct reads of 512 bytes, and overstates large ones, such as reading ahead.",
    "Rows read, of drive: rows asked of the file per second, as a share of the same. It is the drive's load where each "
    "row is one direct read, and more than that where the page cache answers or one read brings several rows.",
    "Read over a block a miss: bytes read over the least possible with a block for every missing row. Read over packed "
    "rows: over the bytes of the missing rows alone, without optimizer state. Missing rows: rows read, else those "
    "counted before the turns.",
)


_ALONE = "The same batches through the embedding tables alone, forward and backward, without the MLPs"


def _vs(name: str) -> Column[OnDrive]:
    """Speed relative to the baseline or a rival."""

    def show(row: OnDrive) -> str:
        if base_name(row.system) == name and row.samples_per_s is not None:
            return "1"
        return relative(row.speed if name == IN_RAM else row.over(name), row.noise)

    return Column(words=f"vs {name}", show=show)


def _kilobytes(row: OnDrive) -> str:
    if row.read_bytes is None or row.written_bytes is None:
        return MISSING
    return f"{amount(row.read_bytes / 1e3)} / {amount(row.written_bytes / 1e3)}"


def _held(row: OnDrive) -> str:
    return MISSING if row.held_bytes is None else percent(row.held_bytes / row.host_budget_bytes, 1)


_NAMES: tuple[Column[OnDrive], ...] = (
    Column(words="budget", show=lambda row: binary_bytes(row.host_budget_bytes), text=True, repeats=True),
    Column(words="system", show=lambda row: row.system, text=True, repeats=True),
)
COLUMNS: dict[Step, tuple[Column[OnDrive], ...]] = {
    Step.WHOLE: (
        *_NAMES,
        Column(words="knew", show=lambda row: row.knew or MISSING, text=True),
        Column(words="samples/s", show=lambda row: amount(row.samples_per_s, row.noise)),
        _vs(IN_RAM),
        Column(words="AUROC", show=lambda row: score(row.auroc)),
        Column(words="rows read per sample", show=lambda row: amount(row.rows_read)),
        Column(words="kB read / written per sample", show=_kilobytes),
        Column(words="memory held, % of budget", show=_held),
        Column(words="status", show=lambda row: row.status, text=True),
    ),
    Step.EMBEDDING: (
        *_NAMES,
        Column(words="embedding samples/s", show=lambda row: amount(row.samples_per_s, row.noise)),
        *map(_vs, (IN_RAM, *RIVALS)),
        Column(words="blocks read, % of drive", show=lambda row: percent(row.blocks_of_drive)),
        Column(words="rows read, % of drive", show=lambda row: percent(row.rows_of_drive)),
        Column(words="read over a block a miss", show=lambda row: amount(row.over_blocks)),
        Column(words="read over packed rows", show=lambda row: amount(row.over_packed)),
    ),
}


def disk_blocks(groups: Sequence[Group], columns: Columns = Columns.ALL) -> tuple[Block, ...]:
    """Two blocks per sweep of host budgets, one where the embedding step was not timed.

    Args:
        groups: Those on a drive count; the others have other tables.
        columns: With all, the facts say steps and versions as well.
    """
    found = sweeps(filter(on_drive, groups))
    heads = family_headings([one[0] for one in found])
    return tuple(
        block
        for one, heading in zip(found, heads, strict=True)
        for block in _blocks(one, f"{heading}, rows on a drive", columns)
    )


def disk_verdict(sweep: Sequence[Group]) -> tuple[str, ...]:
    """What follows from one sweep of host budgets."""
    rows = next((found for group in sweep if (found := table_rows(group)) is not None), None)
    size = None if rows is None else rows * _row_bytes(sweep[0])
    return sentences(rows_on_drive(sweep, Step.WHOLE), rows_on_drive(sweep, Step.EMBEDDING), size)


def _blocks(sweep: Sequence[Group], heading: str, columns: Columns) -> list[Block]:
    whole, alone = (rows_on_drive(sweep, step) for step in Step)
    failed = [f"{binary_bytes(row.host_budget_bytes)}, {row.system}: {row.why}" for row in whole if row.why]
    noted = dict.fromkeys(
        f"{row.system}: {note}" for group in sweep for row in merged_rows(group) for note in row.notes
    )
    records = [record for group in sweep for record in group.records]
    more = details(sweep) if columns is Columns.ALL else ()
    first = replace(
        _block(sweep, Step.WHOLE, whole),
        heading=heading,
        verdict=disk_verdict(sweep),
        facts=(
            *facts(sweep),
            *_tables(sweep[0]),
            *_drive(records),
            *_memory(records),
            *_intervals([*whole, *alone]),
            *more,
        ),
        notes=(*notes(failed, "Not measured"), *notes(noted)),
    )
    second = replace(_block(sweep, Step.EMBEDDING, alone), heading="The embedding step alone", facts=(_ALONE,))
    return [first, second] if alone else [first]


def _block(sweep: Sequence[Group], step: Step, rows: Sequence[OnDrive]) -> Block:
    shown = [column for column in COLUMNS[step] if any(column.show(row) != MISSING for row in rows)]
    records = {group.cell.host_budget_bytes: group.rounds_by_system for group in sweep}
    keys = ([run.key for run in records[row.host_budget_bytes][row.system]] for row in rows)
    return Block(heading="", heads=tuple(shown), lines=lines(shown, zip(rows, keys, strict=True)))


def _tables(group: Group) -> tuple[str, ...]:
    rows = table_rows(group)
    if rows is None:
        return ()
    schema = SCHEMAS.get(group.cell.workload.partition("@")[0])
    number = f" in {len(schema.categorical)} tables" if schema else ""
    size = f"{gigabytes(rows * _row_bytes(group))} GB"
    return (f"Rows: {count(rows)}{number}, {group.cell.embedding_dim} floats each, {size} in all",)


def _row_bytes(group: Group) -> int:
    return FLOAT_BYTES * group.cell.embedding_dim


def _drive(records: Sequence[Record]) -> tuple[str, ...]:
    drives = drives_of(records)
    kinds = dict.fromkeys((one.file_system, one.read_bytes, one.measured_by) for one in drives)
    found = []
    for kind in kinds:
        like = [one for one in drives if (one.file_system, one.read_bytes, one.measured_by) == kind]
        first, other = (_span([round(getattr(one, f"reads_per_s_depth_{depth}")) for one in like]) for depth in (1, 32))
        found.append(
            f"Drive: {kind[0]}, random reads of {kind[1]:,} bytes past the page cache: {first}/s at depth 1, {other}/s "
            f"at depth 32, measured by {kind[2]}"
        )
    return tuple(found)


def _memory(records: Sequence[Record]) -> tuple[str, ...]:
    measured = [run.measurement for run in records if run.measurement is not None]
    held = [one.held for one in measured if one.held is not None]
    if not held:
        return ()
    without = _span([round(one.without_rows_bytes / 1e6) for one in held])
    how = " or ".join(dict.fromkeys(one.how for one in held))
    return (f"Memory held by: {how}, at the budget and what training took without rows ({without} MB)",)


def _intervals(rows: Iterable[OnDrive]) -> tuple[str, ...]:
    """What they are over; nothing where there is no ratio."""
    builds = [row.builds for row in rows if row.ratio is not None and row.speed is not None]
    if not builds:
        return ()
    if max(builds) < 2:
        return ("Intervals: none, for every ratio rests on one block of turns",)
    return (
        f"Intervals: Student's, 95 %, over blocks of turns, {_span(builds)} of a system in all rounds; a system is "
        "built once a round",
    )


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
